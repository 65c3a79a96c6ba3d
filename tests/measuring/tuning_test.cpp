// One tuning on times that the model itself makes: what is chosen, what it gains, and what the sections and the words say of it.
#include "measuring/tuning.h"

#include "../test.h"
#include "firkin/base/units.h"
#include "report/report.h"
#include "simulated_steps.h"

namespace firkin {
namespace {

struct Asked {
  TuningPhase phase;
  std::vector<std::string> settings;
  double seconds = 0;
  bool is_enough = false;
};

// Runs the phases over simulated steps of little noise; ten seconds a phase. change: what is asked otherwise.
std::vector<Asked> run(
    const PhaseOptions& options, Tuning& tuning, SimulatedSteps steps = {},
    const std::function<void(StepMeter&)>& change = [](StepMeter&) {}) {
  std::vector<Asked> asked;
  steps.noise = 0.001;
  StepMeter meter = steps.meter(tuning.profile.tensors);
  meter.elapsed_s = [&] { return 10.0 * static_cast<double>(asked.size()); };
  meter.measure = [&, measure = meter.measure](TuningPhase phase, const auto& settings, const auto& blocks, const auto& is_enough) {
    asked.push_back({phase, {}, blocks.seconds});
    for (const TunedSetting& setting : settings) asked.back().settings.push_back(name_of(setting));
    const std::vector<SettingSteps> measured = measure(phase, settings, blocks, is_enough);
    asked.back().is_enough = is_enough(measured);
    return measured;
  };
  change(meter);
  run_phases(options, meter, tuning);
  return asked;
}

SimulatedSteps steps_that_take(std::vector<double> raced_s, std::map<SettingKind, double> gain_s = {}) {
  SimulatedSteps steps;
  steps.raced_s = std::move(raced_s);
  steps.gain_s = std::move(gain_s);
  return steps;
}

Tuning decided_tuning(double default_s, double chosen_s, double none_s = 0.2) {
  Tuning tuning = twelve_tensors();
  run({}, tuning,
      steps_that_take({1.2 * chosen_s, chosen_s},
                      {{SettingKind::kNone, none_s}, {SettingKind::kTorchDefault, default_s}, {SettingKind::kChosenCap, chosen_s}}));
  return tuning;
}

Results sections_of(const Tuning& tuning) {
  Results results;
  results.run = begin_head("tune");
  results.run.command_line = {"firkin", "tune"};
  add_sections(tuning, results);
  return results;
}

TEST(Tuning, CalibratesOnPlansThatNoCapMakes) {
  Tuning tuning = twelve_tensors();
  run({}, tuning);
  EXPECT_EQ(tuning.calibration_plans.size(), 4u);
  for (const BucketPlan& plan : tuning.calibration_plans) EXPECT_FALSE(is_made_by_a_cap(plan, tuning.profile.tensors.bytes, tuning.rule));
  EXPECT_NEAR(tuning.none_step_s, 0.2, 0.004);
  EXPECT_LT(tuning.fit.residual.value(), 0.01);
  EXPECT_FALSE(tuning.dense_curve.empty());
}

TEST(Tuning, RacesAtMostFourCapsAndTheWanted) {
  Tuning tuning = twelve_tensors();
  run({}, tuning);
  EXPECT_LE(tuning.raced.size(), 4u);
  tuning = twelve_tensors();
  run({.caps = {kMiB / 4, 3 * kMiB}, .smallest_cap_bytes = kMiB / 4}, tuning);
  std::vector<int64_t> caps;
  for (const PredictedCap& cap : tuning.raced) caps.push_back(cap.cap_bytes);
  EXPECT_THAT(caps, Contains(kMiB / 4));
  EXPECT_THAT(caps, Contains(3 * kMiB));
}

TEST(Tuning, ARaceIsClearWhereOneCapIsFasterByMoreThanTheNoise) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked = run({}, tuning, steps_that_take({0.25, 0.35}));
  EXPECT_TRUE(asked[1].is_enough);
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
    EXPECT_EQ(section.cap_bytes, choice_of(tuning).cap_bytes);
    EXPECT_NEAR(section.measured_s, each.chosen_s, 0.01 * each.chosen_s);
    EXPECT_EQ(section.over_default->ratio, tuning.decision.over_default->ratio);
    EXPECT_NEAR(section.over_default->ratio, each.chosen_s / each.default_s, 0.02);
    EXPECT_THAT(results_in_text(results), HasSubstr(each.words));
    EXPECT_TRUE(results.dense_curve[0].predicted_range_s->contains(*results.dense_curve[0].predicted_s));
  }
}

TEST(Tuning, AGainIsNeverTakenFromTheBlocksThatChose) {
  Tuning tuning = twelve_tensors();
  run({}, tuning,
      steps_that_take({0.2, 0.3}, {{SettingKind::kNone, 0.2}, {SettingKind::kTorchDefault, 0.3}, {SettingKind::kChosenCap, 0.3}}));
  EXPECT_EQ(tuning.decision.outcome, Outcome::kNothingToGain);
}

TEST(Tuning, SaysThatTheMachineHasChanged) {
  EXPECT_THAT(notes_of(decided_tuning(0.4, 0.3)), IsEmpty());
  EXPECT_THAT(notes_of(decided_tuning(0.4, 0.3, 0.25)),
              ElementsAre(AllOf(HasSubstr(" % longer than when"), HasSubstr("may be off by up to"))));
  EXPECT_THAT(notes_of(decided_tuning(0.4, 0.3, 0.18)), ElementsAre(HasSubstr(" % less than when")));
}

TEST(Tuning, OfCapsThatAreComparedTheCurveIsTheirs) {
  Tuning tuning = twelve_tensors();
  run({.caps = {64 * kMiB}, .compare = true}, tuning,
      steps_that_take({0.35, 0.30}, {{SettingKind::kNaive, 0.5}, {SettingKind::kTorchDefault, 0.4}, {SettingKind::kCap, 0.31}}));
  const Results results = sections_of(tuning);
  ASSERT_EQ(results.curve.size(), 2u);
  EXPECT_EQ(results.curve[1].cap_bytes, 64 * kMiB);
  EXPECT_NEAR(results.decision->measured_s, 0.31, 0.01);
  std::vector<std::string> names;
  for (const StrategyRow& row : results.strategies) names.push_back(row.strategy);
  EXPECT_THAT(names, ElementsAre("none", "naive", "flat", "overlap", "torch default"));
  EXPECT_EQ(results.samples["settings"].size(), 7u);
}

TEST(Tuning, WhatIsNotMeasuredYetHasNoSection) {
  Tuning tuning = twelve_tensors();
  const Results first = sections_of(tuning);
  EXPECT_TRUE(first.profile && first.alpha_beta && !first.calibration && first.curve.empty() && !first.complete);
  std::vector<Results> partials;
  run({}, tuning, {}, [&](StepMeter& meter) { meter.on_partial = [&] { partials.push_back(sections_of(tuning)); }; });
  ASSERT_GE(partials.size(), 3u);
  EXPECT_TRUE(partials[0].calibration && !partials[0].dense_curve.empty() && partials[0].curve.empty());
  EXPECT_EQ(partials[1].curve.size(), tuning.raced.size());
  EXPECT_TRUE(partials[1].strategies.empty() && !partials[1].decision);
  EXPECT_EQ(partials[2].strategies.size(), 3u);
  EXPECT_EQ(partials[2].strategies[2].predicted_s, choice_of(tuning).time_s);
  EXPECT_FALSE(partials[2].decision);
}

// ---- The phases.

TEST(Phases, CalibrateRaceAndMeasureTheGainEachUntilItsShareOfTheTimeHasPassed) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked = run({.seconds = 100}, tuning);
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_THAT((std::vector{asked[0].phase, asked[1].phase, asked[2].phase}),
              ElementsAre(TuningPhase::kCalibration, TuningPhase::kRace, TuningPhase::kGain));
  EXPECT_THAT((std::vector{asked[0].seconds, asked[1].seconds, asked[2].seconds}), ElementsAre(40 - 0, 60 - 10, 100 - 20));
  EXPECT_EQ(asked[0].settings.size(), 1 + 4u);
  EXPECT_THAT(asked[2].settings, ElementsAre("none", "torch default", "chosen cap"));
  EXPECT_TRUE(tuning.complete);
}

TEST(Phases, MeasureAGainUntilItIsSettledWhereCapsAreComparedToo) {
  for (const bool compare : {false, true}) {
    Tuning tuning = twelve_tensors();
    SimulatedSteps steps =
        steps_that_take({0.3}, {{SettingKind::kTorchDefault, 0.3}, {SettingKind::kChosenCap, 0.3}, {SettingKind::kCap, 0.3}});
    steps.noise = 0.02;
    run_phases({.compare = compare}, steps.meter(tuning.profile.tensors), tuning);
    EXPECT_GT(tuning.gain[0].step_s.size(), 12u) << compare;  // the first look
  }
}

TEST(Phases, OfAQuickTuningHaveFewerSettings) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked = run({.calibrations = 2, .raced = 1}, tuning);
  EXPECT_EQ(asked[0].settings.size(), 1 + 2u);
  EXPECT_EQ(asked[1].settings.size(), 1u);
}

TEST(Phases, CalibrateOnCapsWherePlansAreNotPossible) {
  Tuning tuning = twelve_tensors();
  const std::vector<Asked> asked =
      run({}, tuning, {}, [](StepMeter& meter) { meter.is_possible = [](const BucketPlan& /*plan*/) { return false; }; });
  ASSERT_EQ(asked[0].settings.size(), 1 + 4u);
  for (size_t i = 1; i < asked[0].settings.size(); ++i) EXPECT_THAT(asked[0].settings[i], HasSubstr("bucketed"));
}

TEST(Phases, RaceAndChooseTheCapsOfRank0) {
  Tuning tuning = twelve_tensors();
  const auto of_rank_0 = [](const std::vector<int64_t>& list) {
    return list.size() > 1 ? std::vector{kMiB, 16 * kMiB} : std::vector<int64_t>{1};
  };
  const std::vector<Asked> asked = run({}, tuning, {}, [&](StepMeter& meter) { meter.of_rank_0 = of_rank_0; });
  EXPECT_EQ(asked[1].settings.size(), 2u);
  EXPECT_EQ(choice_of(tuning).cap_bytes, 16 * kMiB);
}

}  // namespace
}  // namespace firkin
