// The whole of tune on real steps of a small module; never how fast anything was.
#include "tune/measure.h"

#include "../bench/small_workload.h"
#include "../comm/thread_ranks.h"
#include "../test.h"
#include "firkin/ddp/await_parameters.h"
#include "report/words.h"
#include "results/results.h"

namespace firkin {
namespace {

TuneOptions quick_tune() {
  TuneOptions options;
  options.profile_steps = 6;
  options.allreduce_seconds = 0.1;
  options.phases.calibration_blocks.most = options.phases.race_blocks.most = 4;
  options.phases.gain_blocks.most = 4;
  return options;
}

std::vector<std::string> names_of(const std::vector<SettingSteps>& settings) {
  std::vector<std::string> names;
  for (const SettingSteps& setting : settings) names.push_back(setting.name);
  return names;
}

Results sections_of(const Tuning& tuning) {
  Results results;
  results.run = begin_head("tune");
  add_sections(tuning, results);
  return results;
}

// A result as `tune` must give it, whatever the times were.
void check_result(const Tuning& tuning) {
  EXPECT_TRUE(tuning.complete);
  EXPECT_EQ(tuning.race.size(), tuning.raced.size());
  for (size_t i = 0; i < tuning.raced.size(); ++i) {
    EXPECT_EQ(tuning.raced[i].buckets, tuning.race[i].buckets);
    EXPECT_GT(tuning.raced[i].time_s, 0);
  }
  ASSERT_LT(tuning.standing.choice, tuning.raced.size());
  EXPECT_THAT(tuning.standing.tied, Contains(tuning.standing.choice));
  EXPECT_TRUE(tuning.decision.level);
  const Results results = sections_of(tuning);
  ASSERT_TRUE(results.decision);
  for (const CurveRow& row : results.curve) EXPECT_LE(row.measured_ci_s->low, *row.measured_s);
  EXPECT_EQ(results.curve.size(), tuning.compared.empty() ? tuning.raced.size() : tuning.compared.size());
  EXPECT_EQ(results.strategies.size() + tuning.compared.size(), tuning.gain.size());
}

TEST(Tune, RacesTheBestCapsAndMeasuresTheGainInOtherBlocks) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload(64);
    const Tuning result = tune(group, workload, quick_tune());
    check_result(result);
    EXPECT_LE(result.raced.size(), 4u);
    EXPECT_EQ(result.calibration.size(), 1 + 4u);
    EXPECT_GT(result.none_step_s, 0);
    EXPECT_THAT(names_of(result.gain), ElementsAre("none", "torch default", "chosen cap"));
    EXPECT_EQ(result.gain.back().buckets, choice_of(result).buckets);
    EXPECT_EQ(result.gain[0].step_s.size(), 4u);
  });
}

TEST(Tune, MeasuresTheAllReduceInTheGradientsType) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    workload.module->to(at::kDouble);
    workload.parameters = workload.module->parameters();
    workload.loss = [module = workload.module](int64_t) {
      return std::dynamic_pointer_cast<torch::nn::SequentialImpl>(module)->forward(at::ones({4, 32}, at::kDouble)).mean();
    };
    workload.optimizer = std::make_shared<torch::optim::SGD>(workload.parameters, 0.001);
    const Tuning result = tune(group, workload, quick_tune());
    check_result(result);
    EXPECT_EQ(result.allreduce[0].bytes, 16);  // 4 bytes are no element
  });
}

TEST(Tune, HasFewerBlocksWhereTheTimeIsUpButEnoughForIntervals) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    options.profile_steps = 50;
    options.phases = phases_of(0.1, 100, {});
    options.phases.race_blocks.most = 50;
    const Tuning result = tune(group, workload, options);
    check_result(result);
    EXPECT_EQ(result.calibration[0].step_s.size(), 3u);
    EXPECT_EQ(result.race[0].step_s.size(), 3u);
    EXPECT_EQ(result.gain[0].step_s.size(), 6u);
  });
}

struct AwaitingLinear : torch::nn::LinearImpl {
  using LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) {
    await_parameters(*this);
    return LinearImpl::forward(x);
  }
};

// Modules that await their parameters.
Workload awaiting_workload() {
  auto net = std::make_shared<torch::nn::Module>("net");
  const auto first = net->register_module("first", std::make_shared<AwaitingLinear>(64, 64));
  const auto second = net->register_module("second", std::make_shared<AwaitingLinear>(64, 64));
  return workload_of(net, [first, second](int64_t step) { return second->forward(first->forward(at::full({4, 64}, 0.1 * step))).mean(); });
}

TEST(Tune, MeasuresOrderedWhereModulesAwait) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = awaiting_workload();
    const Tuning result = tune(group, workload, quick_tune());
    check_result(result);
    const TensorProfile& profile = result.profile.tensors;
    ASSERT_TRUE(profile.knows_forward());
    EXPECT_LT(profile.needed_s.back(), profile.needed_s.front());  // ready last, needed first
    EXPECT_GT(profile.needed_s.back(), 0);
    EXPECT_GE(profile.forward_s, profile.needed_s.front());
    EXPECT_GT(profile.update_s[0], 0);
    const Results results = sections_of(result);
    ASSERT_TRUE(result.ordered && results.ordered_over_best_cap);
    const auto ordered = std::ranges::find(results.strategies, "ordered", &StrategyRow::strategy);
    ASSERT_NE(ordered, results.strategies.end());
    EXPECT_GT(ordered->predicted_s.value(), 0);
    EXPECT_EQ(ordered->buckets, std::ssize(result.ordered->buckets));
  });
}

TEST(Tune, SaysThatNobodyAwaits) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    const Tuning result = tune(group, workload, quick_tune());
    EXPECT_FALSE(result.profile.tensors.knows_forward());
    EXPECT_FALSE(result.ordered);
    EXPECT_THAT(notes_of(result), Contains(HasSubstr("no module awaits")));
  });
}

TEST(Tune, SaysWhereAModelHasTooFewTensorsToKeepCalibrationApart) {
  run_ranks(2, [](const ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(8, 1).bias(false));
    Workload workload = workload_of(net.ptr(), [net](int64_t) mutable { return net->forward(at::ones({4, 8})).mean(); });
    const Tuning result = tune(group, workload, quick_tune());
    check_result(result);
    EXPECT_THAT(notes_of(result), Contains(HasSubstr("the model was also calibrated on the buckets of")));
  });
}

// What of it becomes a section: tests/measuring/tuning_test.cpp.
TEST(Tune, TellsWhatIsKnownSoFar) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    std::vector<Tuning> partials;
    options.on_partial = [&](const Tuning& so_far) { partials.push_back(so_far); };
    const Tuning result = tune(group, workload, options);
    ASSERT_EQ(partials.size(), 4 + 3);  // profile, all-reduce, calibration, race; three of the four blocks
    EXPECT_TRUE(!partials[0].profile.tensors.bytes.empty() && partials[0].allreduce.empty());
    EXPECT_TRUE(!partials[1].allreduce.empty() && partials[1].calibration.empty());
    for (size_t block = 1; block <= 3; ++block) {
      EXPECT_EQ(partials[3 + block].gain.size(), result.gain.size());
      for (const SettingSteps& setting : partials[3 + block].gain) EXPECT_EQ(setting.step_s.size(), block);
    }
    for (const Tuning& so_far : partials) EXPECT_FALSE(so_far.complete);
  });
}

TEST(Tune, RefusesACapOfNothingAndTwoDtypesBeforeItMeasures) {
  run_ranks(2, [](const ProcessGroup& group) {
    Workload workload = small_workload();
    TuneOptions options = quick_tune();
    options.on_progress = [](TuningPhase, int, const std::string&) { ADD_FAILURE(); };
    options.phases.caps = {4096, 0};
    EXPECT_THROW(tune(group, workload, options), InputError);
    options.phases.caps = {};
    workload.module->parameters()[0].set_data(workload.module->parameters()[0].to(at::kDouble));
    EXPECT_THROW(tune(group, workload, options), InputError);
  });
}

}  // namespace
}  // namespace firkin
