#include "firkin/plan/decision.h"

#include <random>

#include "../test.h"
#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

std::vector<PredictedCap> caps_of_regrets(const std::vector<double>& regrets) {
  std::vector<PredictedCap> caps;
  for (size_t i = 0; i < regrets.size(); ++i) {
    const auto cap = static_cast<int64_t>(i + 1) * kMiB;
    caps.push_back({.cap_bytes = cap,
                    .lowest_cap_bytes = cap,
                    .highest_cap_bytes = cap + 1,
                    .buckets = static_cast<int64_t>(8 - i),
                    .time_s = 0.1 * (1 + regrets[i]),
                    .expected_regret = regrets[i]});
  }
  return caps;
}

// [setting][block], with the machine's speed changing from block to block, and noise of each.
std::vector<std::vector<double>> blocks_of(const std::vector<double>& step_s, int blocks, double noise, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::vector<double>> series(step_s.size());
  for (int block = 0; block < blocks; ++block) {
    const double speed = std::uniform_real_distribution<double>(1, 2)(random);
    for (size_t i = 0; i < step_s.size(); ++i) {
      series[i].push_back(step_s[i] * speed * std::exp(noise * std::normal_distribution<double>()(random)));
    }
  }
  return series;
}

Confirmation confirmation_of(double none_s, double default_s, double choice_s, double noise = 0.005, int blocks = 10) {
  const auto series = blocks_of({none_s, default_s, choice_s}, blocks, noise, 7);
  return {series[0], series[1], series[2]};
}

TEST(Weigh, TakesTheLeastRegretWhereNothingIsMeasured) {
  const Standing standing = weigh(caps_of_regrets({0.05, 0.0, 0.02, 0.2}));
  EXPECT_EQ(standing.choice, 1u);
  EXPECT_THAT(standing.tied, Contains(2u));
  EXPECT_FALSE(is_clear(standing, 0));
}

TEST(Weigh, OfCapsThatAreAsGoodTakesTheFewestBuckets) {
  EXPECT_EQ(weigh(caps_of_regrets({0.0, 0.0005, 0.0002, 0.2})).choice, 2u);
}

TEST(Weigh, IsCorrectedByBlocksHoweverTheMachinesSpeedChanges) {
  const auto caps = caps_of_regrets({0.0, 0.01, 0.02, 0.03});
  const Standing standing = weigh(caps, blocks_of({0.12, 0.11, 0.10, 0.13}, 10, 0.01, 1));
  EXPECT_EQ(standing.choice, 2u);
  EXPECT_THAT(standing.tied, ElementsAre(2u));
  EXPECT_TRUE(is_clear(standing, 10));
}

TEST(Weigh, StaysWithThePredictionWhereOneNoisyBlockSaysOtherwise) {
  const auto caps = caps_of_regrets({0.08, 0.0, 0.06});
  EXPECT_EQ(weigh(caps, {{0.100}, {0.101}, {0.102}}).choice, 1u);
}

TEST(Weigh, NeverExpectsANegativeRegret) {
  const auto caps = caps_of_regrets({0.0, 0.2});
  for (double slower = 1.1; slower < 2; slower += 1e-5) {
    EXPECT_GE(weigh(caps, blocks_of({0.1, 0.1 * slower}, 10, 0.01, 1)).expected_regret, 0) << slower;
  }
}

// Over many draws of truth and noise, what the choice costs in the mean is at most what it says.
TEST(Weigh, SaysWhatRegretIsLeft) {
  double said = 0, paid = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomInstance random(seed);
    std::vector<double> truth, regrets;
    for (int i = 0; i < 4; ++i) {
      regrets.push_back(random.uniform(0, 0.03));
      truth.push_back(0.1 * std::exp(regrets.back() + 0.01 * std::sqrt(12) * random.uniform(-1, 1)));
    }
    const Standing standing = weigh(caps_of_regrets(regrets), blocks_of(truth, 6, 0.02, seed));
    said += standing.expected_regret;
    paid += truth[standing.choice] / std::ranges::min(truth) - 1;
  }
  EXPECT_LE(paid, said);
  EXPECT_GE(paid, said / 10);
}

TEST(Weigh, RefusesStepsOfOtherCaps) {
  EXPECT_THROW(weigh({}), std::invalid_argument);
  EXPECT_THROW(weigh(caps_of_regrets({0, 0.1}), {{0.1}}), std::invalid_argument);
  EXPECT_THROW(weigh(caps_of_regrets({0, 0.1}), {{0.1, 0.2}, {0.1}}), std::invalid_argument);
  EXPECT_THROW(weigh(caps_of_regrets({0, 0.1}), {{0.1}, {0.0}}), std::invalid_argument);
}

Outcome outcome_of(const Confirmation& confirmation, double default_predicted_s = 0.1, bool as_default = false) {
  const auto caps = caps_of_regrets({0.0});
  return decide({.caps = caps, .default_predicted_s = default_predicted_s, .as_default = {as_default}, .confirmation = confirmation})
      .outcome;
}

TEST(Decide, ClaimsAGainWhereTheBlocksThatDidNotChooseShowOne) {
  const auto caps = caps_of_regrets({0.0});
  const Decision decision = decide({.caps = caps, .default_predicted_s = 0.13, .confirmation = confirmation_of(0.08, 0.13, 0.10)}, 0.1);
  EXPECT_EQ(decision.outcome, Outcome::kGain);
  EXPECT_NEAR(decision.over_default->ratio, 0.1 / 0.13, 0.01);
  EXPECT_NEAR(*decision.predicted_to_default, 0.1 / 0.13, 1e-9);
  EXPECT_TRUE(decision.level.has_value());
  EXPECT_FALSE(keeps_default(decision.outcome));
}

TEST(Decide, KeepsTheDefaultAndSaysWhy) {
  EXPECT_EQ(outcome_of(confirmation_of(0.1, 0.1, 0.1)), Outcome::kHidden);
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.1, 0.1)), Outcome::kNothingToGain);
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.1, 0.0994, 0.001)), Outcome::kNothingToGain) << "shown, but not worth a line";
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.1, 0.1, 0.05)), Outcome::kNotToldApart);
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.1, 0.12)), Outcome::kDefaultFaster);
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.1, 0.1), 0.1, true), Outcome::kSameBuckets);
  for (const Outcome outcome :
       {Outcome::kHidden, Outcome::kNothingToGain, Outcome::kDefaultFaster, Outcome::kSameBuckets, Outcome::kNotToldApart}) {
    EXPECT_TRUE(keeps_default(outcome));
  }
}

TEST(Decide, SaysWhenMeasurementsCanNeitherShowNorRefuteWhatIsPredicted) {
  const Confirmation noisy = {std::vector<double>(6, 0.08), std::vector<double>(6, 0.1), {0.07, 0.12, 0.08, 0.115, 0.075, 0.11}};
  EXPECT_EQ(outcome_of(noisy, 0.13), Outcome::kNotShown);
  EXPECT_EQ(outcome_of(confirmation_of(0.08, 0.13, 0.1, 0.005, /*blocks=*/4), 0.13), Outcome::kNotShown);
  EXPECT_EQ(outcome_of({}), Outcome::kNotMeasured);
}

TEST(Decide, GivesTheCapAndTheOptionsAGainOfTheirOwn) {
  const auto caps = caps_of_regrets({0.0});
  const auto decide_on = [&](const std::vector<double>& step_s) {
    const auto steps = blocks_of(step_s, 12, 0.003, 11);
    return decide({.caps = caps, .confirmation = {steps[0], steps[1], steps[2], steps[3], steps[4]}, .options = "static_graph=True"});
  };
  const Decision both = decide_on({0.08, 0.130, 0.100, 0.125, 0.095});
  EXPECT_EQ(both.outcome, Outcome::kGain);
  EXPECT_EQ(both.options, "static_graph=True");
  EXPECT_NEAR(both.over_default->ratio, 0.100 / 0.130, 0.01);
  EXPECT_NEAR(both.options_over_none->ratio, 0.095 / 0.100, 0.01);
  EXPECT_NEAR(both.all_over_default->ratio, 0.095 / 0.130, 0.01);
  EXPECT_EQ(recommended_over_default(both)->ratio, both.all_over_default->ratio);
  const Decision alone = decide_on({0.08, 0.100, 0.100, 0.090, 0.091});
  EXPECT_EQ(alone.outcome, Outcome::kNothingToGain);
  EXPECT_NEAR(alone.options_over_none->ratio, 0.090 / 0.100, 0.01) << "with the default's buckets, which are recommended";
  EXPECT_EQ(recommended_over_default(alone)->ratio, alone.options_over_none->ratio);
  const Decision cap = decide_on({0.08, 0.130, 0.100, 0.130, 0.0995});
  EXPECT_FALSE(cap.options) << "a gain of half a percent is not worth an argument";
  EXPECT_EQ(recommended_over_default(cap)->ratio, cap.over_default->ratio);
  EXPECT_FALSE(recommended_over_default(decide_on({0.08, 0.100, 0.100, 0.100, 0.100})));
}

TEST(Decide, OfATriedPlanKeepsOneThatIsNotShownSlower) {
  EXPECT_TRUE(keeps_tried({.ratio = 0.998, .interval = {0.997, 0.999}})) << "however little it gains";
  EXPECT_TRUE(keeps_tried({.ratio = 1.01, .interval = {0.99, 1.03}}));
  EXPECT_FALSE(keeps_tried({.ratio = 1.01, .interval = {1.001, 1.02}}));
  EXPECT_FALSE(is_worth_setting({.ratio = 0.998, .interval = {0.997, 0.999}}));
}

TEST(Decide, NamesTheOneThingThatLimitsTheAnswer) {
  const auto caps = caps_of_regrets({0.0});
  // Twelve blocks of steps of 100 ms by default, and of `low` and `high` by turns with the choice.
  const auto next_step = [&](double none_s, double low_s, double high_s, EndOfBlocks ended) {
    Confirmation steps = {std::vector(12, none_s), std::vector(12, 0.1), {}};
    for (int block = 0; block < 12; ++block) steps.choice_s.push_back((block % 2 == 0 ? low_s : high_s) * (1 + 1e-4 * block));
    return decide({.caps = caps, .confirmation = steps, .ended = ended}).next_step;
  };
  EXPECT_EQ(next_step(0.08, 0.079, 0.080, EndOfBlocks::kSettled), std::nullopt);
  EXPECT_EQ(next_step(0.08, 0.095, 0.1025, EndOfBlocks::kTime), NextStep::kMoreTime);
  EXPECT_EQ(next_step(0.08, 0.095, 0.1025, EndOfBlocks::kLimit), NextStep::kMoreBlocks);
  EXPECT_EQ(next_step(0.08, 0.05, 0.2, EndOfBlocks::kTime), NextStep::kLessNoise);
  EXPECT_EQ(next_step(0.04, 0.1, 0.1, EndOfBlocks::kSettled), NextStep::kSendLess);
}

// As a tuning looks: at 12 blocks and each time that their number has doubled, until what it sees settles the answer.
TEST(Outlook, LookingAgainAndAgainDoesNotMakeAGainOfNoise) {
  constexpr int kTunings = 2000;
  for (const double noise : {0.01, 0.05}) {
    int shown = 0;
    for (uint64_t seed = 0; seed < kTunings; ++seed) {
      const auto steps = blocks_of({0.1, 0.1}, 96, noise, seed);
      size_t blocks = 12;
      const auto seen = [&](size_t setting) { return std::span(steps[setting]).first(blocks); };
      while (blocks < 96 && !outlook(seen(0), seen(1)).settled) blocks *= 2;
      if (paired_ratio(seen(0), seen(1)).interval.high < 1) ++shown;
    }
    EXPECT_LE(shown, 0.04 * kTunings) << "2.5 % by a single look; noise " << noise;
  }
}

TEST(Outlook, SaysHowManyBlocksItTakes) {
  const auto steps = blocks_of({0.098, 0.1}, 12, 0.04, 3);
  const Outlook early = outlook(steps[0], steps[1]);
  EXPECT_FALSE(early.settled);
  EXPECT_GT(early.blocks_needed, 12);
  const auto more = blocks_of({0.098, 0.1}, 400, 0.04, 3);
  EXPECT_TRUE(outlook(more[0], more[1]).settled);
}

// Forty tensors of half a MiB, ready at even times, and a link that takes as long as backward.
struct Forty {
  TensorProfile profile = even_profile(40, kMiB / 2, 0.1);
  CommCosts costs = linear_costs(1e-3, 0.1 / (20 * kMiB));
  StepModel model{.profile = profile, .costs = costs, .simulation = {}, .none_step_s = 0.2, .bare_backward_s = 0.1};
  CapOptions rule{.rule = CapRule::kCloseWhenFull};
};

TEST(CapsToRace, AreAFewApartWithTheBestAmongThemAndRound) {
  const Forty given;
  const std::vector<PredictedCap> caps = caps_to_race(given.model, given.rule, {});
  ASSERT_EQ(caps.size(), 4u);
  for (size_t i = 0; i < caps.size(); ++i) {
    EXPECT_EQ(caps[i].cap_bytes % (kMiB / 2), 0) << "not the roundest of its caps";
    const double before = i == 0 ? 0 : static_cast<double>(caps[i - 1].cap_bytes);
    EXPECT_GE(static_cast<double>(caps[i].cap_bytes), 1.2 * before);
  }
  std::vector<int64_t> all;
  for (int64_t cap = kMiB / 2; cap <= 20 * kMiB; cap += kMiB / 2) all.push_back(cap);
  double least_s = 1;
  for (const PredictedCap& cap : predict_steps(given.model, given.rule, all)) least_s = std::min(least_s, cap.time_s);
  EXPECT_LT(caps[weigh(caps).choice].time_s, 1.01 * least_s);
}

TEST(CapsToRace, RespectLimitsAndHoldWhatIsWanted) {
  const Forty given;
  for (const PredictedCap& cap : caps_to_race(given.model, given.rule, {.most_buckets = 5, .smallest_cap_bytes = 3 * kMiB})) {
    EXPECT_LE(cap.buckets, 5);
    EXPECT_GE(cap.cap_bytes, 3 * kMiB);
  }
  const std::vector<PredictedCap> caps = caps_to_race(given.model, given.rule, {.wanted = {kMiB / 2, 20 * kMiB}});
  EXPECT_EQ(caps.front().cap_bytes, kMiB / 2);
  EXPECT_EQ(caps.back().cap_bytes, 20 * kMiB);
  EXPECT_EQ(caps.size(), 4u);
}

TEST(CapsToRace, AreApartByAllCapsThatMakeTheirBucketsNotByTheRoundest) {
  // 7 and 8 MiB are neighbours; but what 7 makes begins at 6 MiB, and with 8 no gradient leaves before the last.
  Forty given;
  given.profile = make_profile({6 * kMiB, kMiB + kMiB / 4, 5 * kMiB}, {0.03, 0.06, 0.1});
  std::vector<std::pair<int64_t, int64_t>> raced;
  for (const PredictedCap& cap : caps_to_race(given.model, given.rule, {})) raced.emplace_back(cap.cap_bytes / kMiB, cap.buckets);
  EXPECT_EQ(raced, (std::vector<std::pair<int64_t, int64_t>>{{1, 3}, {2, 2}, {7, 2}, {8, 1}}));
}

TEST(CapsToRace, StandAwayFromTheCliff) {
  // One large tensor at the end: any bucket that it is in leaves late. Just below the cap that pulls it in, the predicted time is lowest.
  Forty given;
  given.model.none_step_s = 0.1;
  const std::vector<PredictedCap> caps = predict_steps(given.model, given.rule, std::vector<int64_t>{kMiB, 2 * kMiB, 4 * kMiB, 20 * kMiB});
  EXPECT_GT(caps.back().expected_regret, caps.front().expected_regret);
}

}  // namespace
}  // namespace firkin
