// The whole of tune on real steps of a small module; never how fast anything was.
#include "bench/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../comm/thread_ranks.h"
#include "firkin/base/error.h"
#include "model/layers.h"
#include "small_workload.h"

namespace firkin {
namespace {

TuneOptions quick_tune() {
  TuneOptions options;
  options.profile_steps = 6;
  options.allreduce_seconds = 0.1;
  options.calibration_blocks = 4;
  options.race_blocks = 4;
  options.steps.blocks = 4;
  return options;
}

bool has_torch_default() {
  return torch_default_left_out().empty();
}

// A result as `tune` must give it, whatever the times were.
void check_result(const TuneResult& result) {
  EXPECT_TRUE(result.complete);
  for (const CurvePoint& point : result.curve) {
    EXPECT_EQ(point.predicted.buckets, point.measured.buckets);
    EXPECT_GT(point.predicted.step_s, 0);
    EXPECT_LE(point.measured.step_ci.low, point.measured.step_s);
  }
  EXPECT_THAT(result.indifference, testing::Contains(result.best_measured));
  EXPECT_LT(result.best_predicted, result.curve.size());
  EXPECT_GT(result.predicted_to_best.ratio, 0);
  const bool compared = result.strategies.back().name != kChoiceName;
  EXPECT_EQ(result.steps.step_s.size(), result.strategies.size() + (compared ? result.curve.size() : 0));
  ASSERT_LT(result.decision.standing.choice, result.race.caps.size());
  EXPECT_THAT(result.decision.standing.tied, testing::Contains(result.decision.standing.choice));
  EXPECT_EQ(result.race.steps.step_s.size(), result.race.caps.size());
  EXPECT_TRUE(result.decision.level);
}

TEST(Tune, RacesTheBestCapsAndMeasuresTheGainInOtherBlocks) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload(64);
    const TuneResult result = tune(group, workload, quick_tune());
    check_result(result);
    EXPECT_LE(result.race.caps.size(), 4u);
    EXPECT_EQ(result.curve.size(), result.race.caps.size());
    EXPECT_EQ(result.calibration.runs.size(), 4);
    EXPECT_GT(result.calibration.none_step_s, 0);
    std::vector<std::string> names;
    for (const Measurement& m : result.strategies) names.push_back(m.name);
    if (has_torch_default()) {
      EXPECT_THAT(names, testing::ElementsAre("none", "torch default", kChoiceName));
    }
    EXPECT_EQ(result.strategies.back().buckets, result.race.caps[result.decision.standing.choice].buckets);
    EXPECT_EQ(result.steps.step_s[0].size(), 4u);
  });
}

TEST(Tune, ComparesStrategiesAndCapsOfAllSizesWhereAsked) {
  if (!has_torch_default()) GTEST_SKIP() << torch_default_left_out();
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload(64);
    TuneOptions options = quick_tune();
    options.compare = true;
    const TuneResult result = tune(group, workload, options);
    check_result(result);
    std::vector<std::string> names;
    for (const Measurement& m : result.strategies) names.push_back(m.name);
    EXPECT_THAT(names, testing::ElementsAre("none", "naive", "flat", "overlap", "torch default"));
    EXPECT_GE(result.curve.size(), 5);
    EXPECT_EQ(result.curve.back().predicted.buckets, 1);
    ASSERT_TRUE(result.torch_default && result.decision.to_default);
    EXPECT_EQ(result.torch_default->measured.buckets, 1);
    EXPECT_GT(result.torch_default->predicted_s, 0);
    EXPECT_TRUE(result.decision.to_default->interval.contains(result.decision.to_default->ratio));
  });
}

// Modules that await their parameters.
Workload awaiting_workload() {
  auto net = std::make_shared<torch::nn::Module>("net");
  const auto first = net->register_module("first", std::make_shared<LinearLayer>(64, 64, true, 0.1, at::kFloat));
  const auto second = net->register_module("second", std::make_shared<LinearLayer>(64, 64, true, 0.1, at::kFloat));
  Workload workload;
  workload.module = net;
  workload.parameters = net->parameters();
  workload.loss = [first, second](int64_t step) { return second->forward(first->forward(at::full({4, 64}, 0.1 * step))).mean(); };
  workload.optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.001);
  return workload;
}

TEST(Tune, MeasuresOrderedWhereModulesAwaitAndHooksThatAreAskedFor) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = awaiting_workload();
    TuneOptions options = quick_tune();
    options.hooks = {"bf16"};
    const TuneResult result = tune(group, workload, options);
    check_result(result);
    const TensorProfile& profile = result.profile.tensors;
    ASSERT_TRUE(profile.knows_forward());
    EXPECT_LT(profile.needed_s.back(), profile.needed_s.front());  // ready last, needed first
    EXPECT_GT(profile.needed_s.back(), 0);
    EXPECT_GE(profile.forward_s, profile.needed_s.front());
    EXPECT_GT(profile.update_s[0], 0);
    ASSERT_TRUE(result.ordered && result.ordered_to_best_cap);
    EXPECT_GT(result.ordered->predicted_s, 0);
    EXPECT_EQ(result.ordered->measured.name, "ordered");
    EXPECT_GT(result.ordered->measured.step_s, 0);
    EXPECT_EQ(result.ordered->measured.buckets, static_cast<int64_t>(result.ordered->plan.buckets.size()));
    ASSERT_EQ(result.hooks.size(), 1U);
    EXPECT_THAT(result.hooks[0].measured.name, testing::EndsWith(", bf16"));
    EXPECT_GT(result.hooks[0].to_best_cap.ratio, 0);
    EXPECT_GT(result.hooks[0].predicted.step_s, 0);
  });
}

TEST(Tune, SaysThatNobodyAwaits) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const TuneResult result = tune(group, workload, quick_tune());
    EXPECT_FALSE(result.profile.tensors.knows_forward());
    EXPECT_FALSE(result.ordered);
    EXPECT_THAT(result.notes, testing::Contains(testing::HasSubstr("no module awaits")));
  });
}

TEST(Tune, MeasuresTheCapsThatItIsGivenAndThePredictedBest) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    options.caps = {200, 100000, 200000};
    const TuneResult raced = tune(group, workload, options);
    check_result(raced);
    EXPECT_EQ(raced.curve.front().predicted.cap_bytes, 200);
    options.compare = true;
    const TuneResult result = tune(group, workload, options);
    check_result(result);
    EXPECT_GE(result.curve.size(), 2);
    EXPECT_LE(result.curve.size(), 3);
    EXPECT_THAT(result.notes, testing::Contains(testing::HasSubstr("makes the same buckets as")));
  });
}

TEST(Tune, CalibratesOnNothingThatItPredicts) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const TuneResult result = tune(group, workload, quick_tune());
    const std::vector<int64_t>& sizes = result.profile.tensors.bytes;
    for (const CurvePoint& point : result.curve) {
      CapOptions rule;
      rule.cap_bytes = point.predicted.cap_bytes;
      EXPECT_FALSE(calibrated_on(result.calibration.plans, assign_buckets(sizes, rule)));
    }
    EXPECT_FALSE(calibrated_on(result.calibration.plans, one_tensor_per_bucket(sizes.size())));
    EXPECT_THAT(result.notes, testing::Not(testing::Contains(testing::HasSubstr("calibrated on"))));
  });
}

TEST(Tune, SaysWhereAModelHasTooFewTensorsToKeepCalibrationApart) {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(8, 1).bias(false));
    Workload workload;
    workload.module = net.ptr();
    workload.parameters = net->parameters();
    workload.loss = [net](int64_t) mutable { return net->forward(at::ones({4, 8})).mean(); };
    workload.optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.001);
    const TuneResult result = tune(group, workload, quick_tune());
    check_result(result);
    EXPECT_THAT(result.notes, testing::Contains(testing::HasSubstr("the model was calibrated on the buckets of")));
  });
}

TEST(Tune, TellsWhatIsKnownSoFar) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    std::vector<TuneResult> told;
    options.on_partial = [&](const TuneResult& so_far) { told.push_back(so_far); };
    const TuneResult result = tune(group, workload, options);
    ASSERT_EQ(told.size(), 4 + 3);  // profile, all-reduce, calibration, race; three of the four blocks
    EXPECT_FALSE(told[0].profile.tensors.bytes.empty());
    EXPECT_TRUE(told[0].allreduce.empty());
    EXPECT_FALSE(told[1].allreduce.empty());
    EXPECT_TRUE(told[1].calibration.runs.empty());
    EXPECT_FALSE(told[2].dense_curve.empty());
    EXPECT_TRUE(told[2].curve.empty());
    EXPECT_FALSE(told[3].curve.empty());
    EXPECT_TRUE(told[3].strategies.empty());
    for (size_t block = 1; block <= 3; ++block) {
      const TuneResult& so_far = told[3 + block];
      EXPECT_EQ(so_far.blocks_done, static_cast<int>(block));
      EXPECT_EQ(so_far.curve.size(), result.curve.size());
      EXPECT_EQ(so_far.strategies.size(), result.strategies.size());
      for (const auto& setting : so_far.steps.step_s) EXPECT_EQ(setting.size(), block);
    }
    for (const TuneResult& so_far : told) EXPECT_FALSE(so_far.complete);
    EXPECT_EQ(result.blocks_done, 4);
  });
}

TEST(Tune, RefusesACapOfNothingAndTwoDtypesBeforeItMeasures) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    options.on_progress = [](const std::string&, int, const std::string&) { ADD_FAILURE(); };
    options.caps = {4096, 0};
    EXPECT_THROW(tune(group, workload, options), InputError);
    options.caps = {};
    options.hooks = {"fp8"};
    EXPECT_THROW(tune(group, workload, options), InputError);
    options.hooks = {};
    workload.module->parameters()[0].set_data(workload.module->parameters()[0].to(at::kDouble));
    EXPECT_THROW(tune(group, workload, options), InputError);
  });
}

}  // namespace
}  // namespace firkin
