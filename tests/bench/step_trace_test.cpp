#include "bench/step_trace.h"

#include "../comm/thread_ranks.h"
#include "../test.h"
#include "firkin/ddp/data_parallel.h"
#include "small_workload.h"

namespace firkin {
namespace {

// Of one rank: LibTorch's profiler takes one recording at a time, and the ranks of these tests share a process (two ranks: tests/cli).
std::vector<Span> trace_of(const ProcessGroup& group, const char* strategy, const StepTraceOptions& options) {
  Workload workload = small_workload();
  DataParallelOptions settings;
  settings.strategy = find_strategy(strategy);
  return trace_steps(group, workload, settings, options).at(0);
}

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
      const std::vector<Span> spans = trace_of(group, strategy, {.warmup_steps = 2, .steps = 3});
      EXPECT_EQ(std::ranges::count(spans, Activity::kCollective, &Span::activity), 3 * expected) << strategy;
      EXPECT_EQ(steps_in(spans).size(), 3u) << strategy;
    }
  });
}

TEST(StepTrace, SaysHowManyElementsACollectiveHas) {
  run_ranks(1, [](const ProcessGroup& group) {
    const std::vector<Span> spans = trace_of(group, "flat", {.warmup_steps = 1, .steps = 1});
    const auto found = std::ranges::find(spans, Activity::kCollective, &Span::activity);
    ASSERT_NE(found, spans.end());
    // 1, 32, 32, 1024, 32, 1024 in gradient-ready order, each from a multiple of 64 elements (256 bytes) on.
    EXPECT_EQ(found->elements, 3 * 64 + 1024 + 64 + 1024);
  });
}

TEST(StepTrace, HasTheComputationAndNothingBetweenSteps) {
  run_ranks(1, [](const ProcessGroup& group) {
    const std::vector<Span> spans = trace_of(group, "naive", {.warmup_steps = 1, .steps = 2});
    const TraceFigures figures = figures_of(spans);
    for (size_t step = 0; step < 2; ++step) {
      EXPECT_GT(figures.compute_s.at(step), 0);
      EXPECT_GT(figures.communication_s[step], 0);
      EXPECT_LE(figures.compute_s[step], figures.step_s[step]);
      EXPECT_LE(figures.overlapped_s[step], figures.communication_s[step]);
    }
    const std::vector<Period> steps = steps_in(spans);
    for (const Span& span : spans) EXPECT_FALSE(span.start_ns > steps[0].end_ns && span.start_ns < steps[1].start_ns);
  });
}

}  // namespace
}  // namespace firkin
