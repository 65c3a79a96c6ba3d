// One tuning on times that the model itself makes: what is chosen, what it gains, and what the sections and the words say of it.
#include "measuring/tuning.h"

#include "../test.h"
#include "firkin/base/units.h"
#include "measuring/phases.h"
#include "report/report.h"

namespace firkin {
namespace {

constexpr int kBlocks = 9;

// Twelve tensors that get ready one after another, and a link that takes 3 ms a call and 4 ns a byte.
Tuning twelve_tensors() {
  Tuning tuning;
  tuning.world_size = 2;
  TensorProfile& tensors = tuning.profile.tensors;
  for (const int64_t quarters : {8, 8, 1, 16, 16, 8, 8, 4, 8, 8, 16, 1}) {
    tensors.names.push_back(fmt::format("tensor {}", tensors.names.size()));
    tensors.bytes.push_back(quarters * kMiB / 4);
    tensors.ready_s.push_back(0.01 * static_cast<double>(tensors.bytes.size()));
  }
  tensors.backward_s = tuning.profile.bare_backward_s.emplace(0.12);
  for (const int64_t bytes : {int64_t{4}, kMiB / 4, kMiB, 4 * kMiB, 16 * kMiB, 64 * kMiB}) {
    tuning.allreduce.push_back({.bytes = bytes, .world_size = 2, .median_s = 0.003 + 4e-9 * static_cast<double>(bytes)});
  }
  return tuning;
}

// Blocks of steps that differ by half a percent, each setting by its own.
SettingSteps blocks_of(const std::string& name, double step_s, int64_t buckets = 1) {
  SettingSteps setting{.name = name, .buckets = buckets};
  const int own = name.empty() ? 0 : name.back();
  for (int block = 0; block < kBlocks; ++block) setting.step_s.push_back(step_s * (1 + 0.005 * ((7 * block + 3 * own) % 5 - 2)));
  return setting;
}

// As the model has it: buckets one after another, none before its last tensor is ready.
double step_s(const BucketPlan& plan, const TensorProfile& tensors) {
  double end_s = 0;
  for (const Bucket& bucket : plan.buckets) {
    double bytes = 0, ready_s = 0;
    for (auto i = static_cast<size_t>(bucket.first); i < static_cast<size_t>(bucket.first + bucket.count); ++i) {
      bytes += static_cast<double>(tensors.bytes[i]);
      ready_s = tensors.ready_s[i];
    }
    end_s = std::max(end_s, ready_s) + 0.003 + 4e-9 * bytes;
  }
  return 0.2 - 0.12 + end_s;
}

Tuning calibrated_tuning() {
  Tuning tuning = twelve_tensors();
  tuning.calibration_plans = plans_to_calibrate_on(tuning.profile.tensors, tuning.rule);
  tuning.calibration = {blocks_of("none", 0.2, 0)};
  for (const BucketPlan& plan : tuning.calibration_plans) {
    tuning.calibration.push_back(blocks_of("plan", step_s(plan, tuning.profile.tensors), std::ssize(plan.buckets)));
  }
  calibrate(tuning);
  return tuning;
}

// The first of the raced caps takes first_s, the others others_s.
Tuning raced_tuning(double first_s, double others_s) {
  Tuning tuning = calibrated_tuning();
  choose_race(tuning);
  for (const PredictedCap& cap : tuning.raced) {
    tuning.race.push_back(blocks_of(cap_setting_name(cap.cap_bytes), tuning.race.empty() ? first_s : others_s, cap.buckets));
  }
  is_clear(tuning);
  return tuning;
}

Tuning decided_tuning(double default_s, double chosen_s, double none_s = 0.2) {
  Tuning tuning = raced_tuning(1.2 * chosen_s, chosen_s);
  tuning.gain = {blocks_of("none", none_s, 0), blocks_of(kTorchDefaultName, default_s), blocks_of(kChosenCapName, chosen_s)};
  decide(tuning);
  return tuning;
}

Results sections_of(const Tuning& tuning) {
  Results results;
  results.run = begin_head("tune");
  add_sections(tuning, results);
  return results;
}

TEST(Tuning, CalibratesOnPlansThatNoCapMakes) {
  const Tuning tuning = calibrated_tuning();
  EXPECT_EQ(tuning.calibration_plans.size(), 4u);
  EXPECT_NEAR(tuning.none_step_s, 0.2, 0.004);
  EXPECT_LT(tuning.fit.residual.value(), 0.01);
  EXPECT_FALSE(tuning.dense_curve.empty());
}

TEST(Tuning, ACalibrationNeedsAsManySettingsAsPlansAndNone) {
  Tuning tuning = calibrated_tuning();
  tuning.calibration.pop_back();
  EXPECT_THROW(calibrate(tuning), std::invalid_argument);
}

TEST(Tuning, RacesAtMostFourCapsAndTheWanted) {
  Tuning tuning = calibrated_tuning();
  choose_race(tuning);
  EXPECT_LE(tuning.raced.size(), 4u);
  choose_race(tuning, {.smallest_cap_bytes = kMiB / 4, .wanted = {kMiB / 4, 3 * kMiB}});
  std::vector<int64_t> caps;
  for (const PredictedCap& cap : tuning.raced) caps.push_back(cap.cap_bytes);
  EXPECT_THAT(caps, Contains(kMiB / 4));
  EXPECT_THAT(caps, Contains(3 * kMiB));
}

TEST(Tuning, ARaceIsClearWhereOneCapIsFasterByMoreThanTheNoise) {
  Tuning tuning = raced_tuning(0.25, 0.35);
  EXPECT_TRUE(is_clear(tuning));
  EXPECT_EQ(choice_of(tuning).cap_bytes, tuning.raced[0].cap_bytes);
}

TEST(Tuning, TheChoiceItsGainTheSectionsAndTheWordsSayTheSame) {
  struct Case {
    double default_s, chosen_s;
    Outcome outcome;
    const char* words;
  };
  for (const Case& each : {Case{0.4, 0.30, Outcome::kGain, "Set bucket_cap_mb="},
                           {0.3, 0.30, Outcome::kNothingToGain, "Keep PyTorch's default"},
                           {0.25, 0.30, Outcome::kDefaultFaster, "Keep PyTorch's default"},
                           {0.2, 0.20, Outcome::kHidden, "Keep PyTorch's default"}}) {
    const Tuning tuning = decided_tuning(each.default_s, each.chosen_s);
    EXPECT_EQ(tuning.decision.outcome, each.outcome);
    const Results results = sections_of(tuning);
    const Decision& section = *results.decision;
    EXPECT_EQ(section.outcome, each.outcome);
    EXPECT_EQ(section.cap_mib, mib(choice_of(tuning).cap_bytes));
    EXPECT_NEAR(section.measured_s, each.chosen_s, 0.01 * each.chosen_s);
    EXPECT_EQ(section.over_default->ratio, tuning.decision.over_default->ratio);
    EXPECT_NEAR(section.over_default->ratio, each.chosen_s / each.default_s, 0.02);
    EXPECT_THAT(results_in_text(results), HasSubstr(each.words));
    EXPECT_TRUE(results.dense_curve[0].predicted_range_s->contains(*results.dense_curve[0].predicted_s));
  }
}

TEST(Tuning, AGainIsNeverTakenFromTheBlocksThatChose) {
  Tuning tuning = raced_tuning(0.2, 0.3);
  tuning.gain = {blocks_of("none", 0.2), blocks_of(kTorchDefaultName, 0.3), blocks_of(kChosenCapName, 0.3)};
  decide(tuning);
  EXPECT_EQ(tuning.decision.outcome, Outcome::kNothingToGain);
}

TEST(Tuning, SaysThatTheMachineHasChanged) {
  EXPECT_THAT(decided_tuning(0.4, 0.3).notes, IsEmpty());
  EXPECT_THAT(decided_tuning(0.4, 0.3, 0.25).notes, ElementsAre(AllOf(HasSubstr(" % longer than when"), HasSubstr("may be off by up to"))));
  EXPECT_THAT(decided_tuning(0.4, 0.3, 0.18).notes, ElementsAre(HasSubstr(" % less than when")));
}

TEST(Tuning, OfCapsThatAreComparedTheCurveIsTheirs) {
  Tuning tuning = raced_tuning(0.35, 0.30);
  tuning.compared = predict_steps(model_of(tuning), tuning.rule, std::vector<int64_t>{choice_of(tuning).cap_bytes, 64 * kMiB});
  tuning.gain = {blocks_of("none", 0.2), blocks_of("naive", 0.5), blocks_of(kTorchDefaultName, 0.4)};
  for (const PredictedCap& cap : tuning.compared) tuning.gain.push_back(blocks_of(cap_setting_name(cap.cap_bytes), 0.31, cap.buckets));
  decide(tuning);
  const Results results = sections_of(tuning);
  ASSERT_EQ(results.curve.size(), 2u);
  EXPECT_EQ(results.curve[1].cap_mib, 64);
  EXPECT_NEAR(results.decision->measured_s, 0.31, 0.01);
  std::vector<std::string> names;
  for (const StrategyRow& row : results.strategies) names.push_back(row.strategy);
  EXPECT_THAT(names, ElementsAre("none", "naive", "torch default"));
  EXPECT_EQ(results.samples["settings"].size(), 5u);
}

TEST(Tuning, WhatIsNotMeasuredYetHasNoSection) {
  Tuning tuning = twelve_tensors();
  Results results = sections_of(tuning);
  EXPECT_TRUE(results.profile && results.alpha_beta && !results.calibration && results.curve.empty() && !results.complete);
  results = sections_of(calibrated_tuning());
  EXPECT_TRUE(results.calibration && !results.dense_curve.empty() && results.curve.empty());
  tuning = raced_tuning(0.35, 0.30);
  results = sections_of(tuning);
  EXPECT_EQ(results.curve.size(), tuning.raced.size());
  EXPECT_TRUE(results.strategies.empty() && !results.decision);
  tuning.gain = {blocks_of("none", 0.2), blocks_of(kTorchDefaultName, 0.4), blocks_of(kChosenCapName, 0.3)};
  results = sections_of(tuning);
  EXPECT_EQ(results.strategies.size(), 3u);
  EXPECT_EQ(results.strategies[2].predicted_s, choice_of(tuning).time_s);
  EXPECT_FALSE(results.decision);
}

// ---- The phases, over steps that take as long as the model has it; ten seconds a phase.

struct Asked {
  std::string phase;
  std::vector<std::string> settings;
  double seconds = 0;
};

std::vector<Asked> run(const PhaseOptions& options, Tuning& tuning, StepMeter meter = {}) {
  std::vector<Asked> asked;
  meter.elapsed_s = [&] { return 10.0 * static_cast<double>(asked.size()); };
  if (!meter.of_rank_0) meter.of_rank_0 = [](const std::vector<int64_t>& list) { return list; };
  meter.measure = [&](const std::string& phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                      const auto& is_enough) {
    asked.push_back({phase, {}, blocks.seconds});
    std::vector<SettingSteps> steps;
    for (const TunedSetting& setting : settings) {
      asked.back().settings.push_back(setting.name);
      const bool sends = !setting.plan.buckets.empty();
      steps.push_back(
          blocks_of(setting.name, sends ? step_s(setting.plan, tuning.profile.tensors) : 0.2, std::ssize(setting.plan.buckets)));
    }
    is_enough(steps);
    return steps;
  };
  run_phases(options, meter, tuning);
  return asked;
}

TEST(Phases, CalibrateRaceAndMeasureTheGainEachUntilItsShareOfTheTimeHasPassed) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked = run({.seconds = 100}, tuning);
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_THAT((std::vector{asked[0].phase, asked[1].phase, asked[2].phase}),
              ElementsAre("calibrating", "racing the best caps", "measuring the gain"));
  EXPECT_THAT((std::vector{asked[0].seconds, asked[1].seconds, asked[2].seconds}), ElementsAre(40 - 0, 60 - 10, 100 - 20));
  EXPECT_EQ(asked[0].settings.size(), 1 + 4u);
  EXPECT_THAT(asked[2].settings, ElementsAre("none", "torch default", "chosen cap"));
  EXPECT_TRUE(tuning.complete);
}

TEST(Phases, OfAQuickTuningHaveFewerSettings) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked = run({.calibrations = 2, .raced = 1}, tuning);
  EXPECT_EQ(asked[0].settings.size(), 1 + 2u);
  EXPECT_EQ(asked[1].settings.size(), 1u);
}

TEST(Phases, CalibrateOnCapsWherePlansAreNotPossible) {
  Tuning tuning = twelve_tensors();
  StepMeter meter;
  meter.is_possible = [](const BucketPlan& /*plan*/) { return false; };
  const std::vector<Asked> asked = run({}, tuning, meter);
  ASSERT_EQ(asked[0].settings.size(), 1 + 4u);
  for (size_t i = 1; i < asked[0].settings.size(); ++i) EXPECT_THAT(asked[0].settings[i], HasSubstr("bucketed"));
}

TEST(Phases, RaceAndChooseTheCapsOfRank0) {
  Tuning tuning = twelve_tensors();
  StepMeter meter;
  meter.of_rank_0 = [](const std::vector<int64_t>& list) {
    return list.size() > 1 ? std::vector{kMiB, 16 * kMiB} : std::vector<int64_t>{1};
  };
  const std::vector<Asked> asked = run({}, tuning, meter);
  EXPECT_EQ(asked[1].settings.size(), 2u);
  EXPECT_EQ(choice_of(tuning).cap_bytes, 16 * kMiB);
}

}  // namespace
}  // namespace firkin
