// The benchmarks measure real steps and real all-reduces; here only their bookkeeping is checked, never how fast anything was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "small_workload.h"

namespace firkin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::SizeIs;

TEST(ReadyProfile, ListsTheModulesTensorsInTheOrderOfBackward) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const MeasuredProfile profile = measure_ready_profile(group, workload, {.steps = 6, .on_progress = {}}).profile;
    check_profile(profile.tensors);
    EXPECT_THAT(profile.tensors.bytes, ElementsAre(4, 128, 128, 4096, 128, 4096));
    EXPECT_EQ(profile.tensors.names.back(), "0.weight");
    EXPECT_GT(profile.bare_backward_s.value(), 0);
    for (const at::Tensor& p : workload.module->parameters()) EXPECT_FALSE(p.grad().defined());
    DataParallel wrapping_still_works(*workload.module, group);
  });
}

TEST(StepBench, TimesStepsThatReachIntoOneAnotherByTheirMean) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    int steps = 0;
    workload.loss = [&steps, loss = workload.loss](int64_t step) {
      ++steps;
      return loss(step);
    };
    DataParallelOptions options;
    options.strategy = find_strategy("ordered");
    options.cap.cap_bytes = 4096;
    const StepBenchResult result =
        measure_steps(group, workload, {{"ordered", options}}, {.blocks = 1, .warmup_steps = 1, .steps_per_block = 2, .on_progress = {}});
    EXPECT_EQ(steps, 1 + steps_to_learn(options) + 4);
    ASSERT_THAT(result.raw_step_s[0], SizeIs(2));
    EXPECT_EQ(result.raw_step_s[0][0], result.raw_step_s[0][1]);
  });
}

TEST(StepBench, MeasuresEverySettingOnceABlock) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    std::vector<StepSetting> settings;
    for (const char* name : {"none", "naive", "flat", "overlap", "bucketed", "torch"}) {
      DataParallelOptions options;
      options.strategy = find_strategy(name);
      options.cap.cap_bytes = 4096;
      settings.push_back({name, options});
    }
    int progress = 0;
    std::vector<size_t> blocks;
    StepBenchOptions options{.blocks = 3, .steps_per_block = 2, .on_progress = [&](const std::string&) { ++progress; }};
    options.is_enough = [&](const StepBenchResult& so_far) {
      for (const auto& setting : so_far.step_s) EXPECT_THAT(setting, SizeIs(blocks.size() + 1));
      blocks.push_back(so_far.step_s[0].size());
      return false;
    };
    const StepBenchResult result = measure_steps(group, workload, settings, options);
    EXPECT_EQ(progress, 18);
    EXPECT_THAT(blocks, ElementsAre(1, 2, 3));
    EXPECT_THAT(result.step_s, SizeIs(6));
    for (size_t s = 0; s < settings.size(); ++s) {
      EXPECT_THAT(result.step_s[s], SizeIs(3));
      EXPECT_THAT(result.step_s[s], Each(Gt(0)));
      EXPECT_THAT(result.raw_step_s[s], SizeIs(6));
      EXPECT_THAT(result.raw_step_s[s], Each(SizeIs(2)));
    }
    EXPECT_THAT(result.buckets, ElementsAre(0, 6, 1, 6, 2, 2));
  });
}

}  // namespace
}  // namespace firkin
