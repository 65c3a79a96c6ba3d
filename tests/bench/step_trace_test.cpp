#include "bench/step_trace.h"

#include "../comm/thread_ranks.h"
#include "../test.h"
#include "firkin/ddp/data_parallel.h"
#include "small_workload.h"

namespace firkin {
namespace {

DataParallelOptions with_strategy(const char* name) {
  DataParallelOptions options;
  options.strategy = find_strategy(name);
  return options;
}

int64_t collectives_of(const std::vector<Span>& spans) {
  return std::ranges::count(spans, Activity::kCollective, &Span::activity);
}

// One rank: LibTorch's profiler takes one recording at a time, and the ranks of these tests share a process (two ranks: tests/cli).
constexpr int kAgreement = 1;  // of all ranks on the step; the peer has none

TEST(StepTrace, HasTheCollectivesThatEachStrategySends) {
  run_ranks(1, [](const ProcessGroup& group) {
    for (const auto& [strategy, expected] : {std::pair{"none", 0},
                                             {"naive", 6 + kAgreement},
                                             {"flat", 1 + kAgreement},
                                             {"overlap", 6 + kAgreement},
                                             {"bucketed", 1 + kAgreement},
                                             {"sharded", kAgreement},
                                             {"torch", 1}}) {
      Workload workload = small_workload();
      const auto spans = trace_steps(group, workload, with_strategy(strategy), {.warmup_steps = 2, .steps = 3});
      ASSERT_EQ(spans.size(), 1u);
      EXPECT_EQ(collectives_of(spans[0]), 3 * expected) << strategy;
      EXPECT_EQ(steps_in(spans[0]).size(), 3u) << strategy;
    }
  });
}

TEST(StepTrace, SaysHowManyElementsACollectiveHas) {
  run_ranks(1, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const auto spans = trace_steps(group, workload, with_strategy("flat"), {.warmup_steps = 1, .steps = 1});
    const auto found = std::ranges::find(spans[0], Activity::kCollective, &Span::activity);
    ASSERT_NE(found, spans[0].end());
    // 1, 32, 32, 1024, 32, 1024 in gradient-ready order, each from a multiple of 64 elements (256 bytes) on.
    EXPECT_EQ(found->elements, 3 * 64 + 1024 + 64 + 1024);
  });
}

TEST(StepTrace, HasTheComputationAndNothingBetweenSteps) {
  run_ranks(1, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const auto spans = trace_steps(group, workload, with_strategy("naive"), {.warmup_steps = 1, .steps = 2});
    const TraceFigures figures = figures_of(spans[0]);
    for (size_t step = 0; step < 2; ++step) {
      EXPECT_GT(figures.compute_s.at(step), 0);
      EXPECT_GT(figures.communication_s[step], 0);
      EXPECT_LE(figures.compute_s[step], figures.step_s[step]);
      EXPECT_LE(figures.overlapped_s[step], figures.communication_s[step]);
    }
    const std::vector<Period> steps = steps_in(spans[0]);
    for (const Span& span : spans[0]) EXPECT_FALSE(span.start_ns > steps[0].end_ns && span.start_ns < steps[1].start_ns);
  });
}

}  // namespace
}  // namespace firkin
