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
    const std::vector<SettingSteps> result =
        measure_steps(group, workload, {{"ordered", options}}, {.blocks = 1, .warmup_steps = 1, .steps_per_block = 2, .on_progress = {}});
    EXPECT_EQ(steps, 1 + steps_to_learn(options) + 4);
    ASSERT_THAT(result[0].raw_step_s, SizeIs(2));
    EXPECT_EQ(result[0].raw_step_s[0], result[0].raw_step_s[1]);
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
    options.is_enough = [&](const std::vector<SettingSteps>& so_far) {
      for (const SettingSteps& setting : so_far) EXPECT_THAT(setting.step_s, SizeIs(blocks.size() + 1));
      blocks.push_back(so_far[0].step_s.size());
      return false;
    };
    const std::vector<SettingSteps> result = measure_steps(group, workload, settings, options);
    EXPECT_EQ(progress, 18);
    EXPECT_THAT(blocks, ElementsAre(1, 2, 3));
    std::vector<int64_t> buckets;
    for (const SettingSteps& setting : result) {
      EXPECT_THAT(setting.step_s, SizeIs(3));
      EXPECT_THAT(setting.step_s, Each(Gt(0)));
      EXPECT_THAT(setting.raw_step_s, SizeIs(6));
      EXPECT_THAT(setting.raw_step_s, Each(SizeIs(2)));
      buckets.push_back(setting.buckets);
    }
    EXPECT_THAT(buckets, ElementsAre(0, 6, 1, 6, 2, 2));
  });
}

}  // namespace
}  // namespace firkin
