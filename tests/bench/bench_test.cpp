// The benchmarks measure real steps and real all-reduces; here only their bookkeeping is checked, never how fast anything was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "bench/tuner.h"
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
    const ReadyProfile profile = measure_ready_profile(group, workload, {.steps = 6, .on_progress = {}});
    check_profile(profile.tensors);
    EXPECT_THAT(profile.tensors.bytes, ElementsAre(4, 128, 128, 4096, 128, 4096));
    EXPECT_EQ(profile.tensors.names.back(), "0.weight");
    EXPECT_GT(profile.bare_backward_s, 0);
    for (const at::Tensor& p : workload.module->parameters()) EXPECT_FALSE(p.grad().defined());
    DataParallel wrapping_still_works(*workload.module, group);
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
    const StepBenchResult result = measure_steps(
        group, workload, settings, {.blocks = 3, .steps_per_block = 2, .on_progress = [&](const std::string&) { ++progress; }});
    EXPECT_EQ(progress, 18);
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

TEST(Tune, PredictsMeasuresAndChooses) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload(64);
    TuneOptions options;
    options.profile_steps = 6;
    options.allreduce_seconds = 0.2;
    options.steps.blocks = 4;
    const TuneResult result = tune(group, workload, options);
    ASSERT_GE(result.curve.size(), 7);
    EXPECT_EQ(result.strategies.size(), 4);
    EXPECT_EQ(result.curve.back().predicted.buckets, 1);
    for (const CurvePoint& point : result.curve) {
      EXPECT_EQ(point.predicted.buckets, point.measured.buckets);
      EXPECT_GT(point.predicted.step_s, 0);
      EXPECT_LE(point.measured.step_ci.low, point.measured.step_s);
    }
    EXPECT_THAT(result.indifference, testing::Contains(result.best_measured));
    EXPECT_GT(result.predicted_to_best.ratio, 0);
    EXPECT_EQ(result.calibration.runs.size(), 2);
    EXPECT_EQ(result.steps.step_s.size(), 4 + result.curve.size());
  });
}

TEST(Tune, MeasuresTheCapsThatItIsGivenAndThePredictedBest) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options;
    options.caps = {200, 100000};
    options.profile_steps = 6;
    options.allreduce_seconds = 0.1;
    options.steps.blocks = 4;
    const TuneResult result = tune(group, workload, options);
    EXPECT_GE(result.curve.size(), 2);
    EXPECT_LE(result.curve.size(), 3);
    EXPECT_LT(result.best_predicted, result.curve.size());
  });
}

}  // namespace
}  // namespace firkin
