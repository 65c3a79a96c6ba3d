// The benchmarks measure real steps and real all-reduces; here only their bookkeeping is checked, never how fast anything was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "firkin/bench/allreduce_bench.h"
#include "firkin/bench/ready_profile.h"
#include "firkin/bench/step_bench.h"
#include "firkin/bench/tuner.h"
#include "small_workload.h"

namespace firkin {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::Gt;
using testing::SizeIs;

TEST(AllReduceSizes, GrowByFourUpToTheLargestWhichIsThere) {
  EXPECT_THAT(allreduce_sizes(100), ElementsAre(4, 16, 64, 100));
  EXPECT_THAT(allreduce_sizes(64), ElementsAre(4, 16, 64));
  EXPECT_THAT(allreduce_sizes(3), ElementsAre(4));
}

TEST(AllReduceBench, GivesEveryRankTheSameRowPerSize) {
  std::array<AllReduceTable, 2> tables;
  run_ranks(2, [&](const ProcessGroup& group) {
    tables[static_cast<size_t>(group.rank)] =
        measure_allreduce(group, {.sizes = {4, 4096, 1 << 20}, .seconds_per_size = 0.01, .rounds = 3, .on_progress = {}});
  });
  ASSERT_THAT(tables[0], SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    const AllReduceRow& row = tables[0][i];
    EXPECT_EQ(row.world_size, 2);
    EXPECT_GT(row.median_s, 0);
    EXPECT_GT(row.gap_s.value(), 0);
    EXPECT_LE(row.min_s.value(), row.median_s);
    EXPECT_GE(row.max_s.value(), row.median_s);
    EXPECT_GE(row.samples.value(), 6);
    EXPECT_EQ(row.median_s, tables[1][i].median_s);
  }
}

TEST(AllReduceBench, RefusesSizesThatAreNoFloats) {
  run_ranks(1, [](const ProcessGroup& group) {
    EXPECT_THROW(measure_allreduce(group, {.sizes = {6}, .on_progress = {}}), InputError);
    EXPECT_THROW(measure_allreduce(group, {.sizes = {0}, .on_progress = {}}), InputError);
  });
}

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
