// Which settings can be told from the best one.
#include "firkin/stats/estimates.h"

#include "../test.h"
#include "synthetic_noise.h"

namespace firkin {
namespace {

// [setting][block], seconds: a drifting machine, and noise of each setting's own.
std::vector<std::vector<double>> measure(SyntheticNoise& noise, const std::vector<double>& true_s, size_t blocks, double stdev) {
  std::vector<std::vector<double>> measured;
  for (const double seconds : true_s) {
    std::vector<double> times = noise.series(blocks, 0);
    for (size_t block = 0; block < blocks; ++block) {
      const double drift = 1 + 0.2 * static_cast<double>(block) / static_cast<double>(blocks);
      times[block] = seconds * drift * std::exp(stdev * times[block]);
    }
    measured.push_back(times);
  }
  return measured;
}

bool is_member(const IndifferenceSet& set, size_t setting) {
  return std::ranges::find(set.members, setting) != set.members.end();
}

// In so many of the trials.
int count(int trials, uint64_t seed, const std::function<bool(SyntheticNoise&)>& happens) {
  SyntheticNoise noise(seed);
  int counted = 0;
  for (int trial = 0; trial < trials; ++trial) counted += happens(noise) ? 1 : 0;
  return counted;
}

class EqualSettings : public testing::TestWithParam<size_t> {};

TEST_P(EqualSettings, TwoAreDeclaredDifferentInAtMostFivePercent) {
  const auto tells_apart = [](SyntheticNoise& noise) {
    return indifference_set(measure(noise, {0.1, 0.1}, GetParam(), 0.01)).members.size() < 2;
  };
  EXPECT_LE(count(1000, 1, tells_apart), 50);
}

INSTANTIATE_TEST_SUITE_P(Blocks, EqualSettings, Values(6, 10));
INSTANTIATE_TEST_SUITE_P(Full, EqualSettings, Values(30));

TEST(SixEqualSettings, TwoOfThemAreToldApartInAtMostFivePercentAlthoughTheLuckiestIsCalledBest) {
  const auto tells_apart = [](SyntheticNoise& noise) {
    const IndifferenceSet set = indifference_set(measure(noise, std::vector<double>(6, 0.1), 10, 0.01));
    return is_member(set, 0) != is_member(set, 1);
  };
  EXPECT_LE(count(200, 2, tells_apart), 10);
}

TEST(AThreePercentDifference, IsFoundUnderOnePercentNoiseAmongTwoAndAmongEightSettings) {
  const auto finds = [](const std::vector<double>& true_s, size_t blocks, size_t best) {
    return [=](SyntheticNoise& noise) {
      const IndifferenceSet set = indifference_set(measure(noise, true_s, blocks, 0.01));
      return set.best == best && set.members.size() == 1;
    };
  };
  EXPECT_GE(count(300, 3, finds({0.103, 0.1}, 20, 1)), 285);
  EXPECT_GE(count(20, 4, finds({0.12, 0.11, 0.103, 0.1, 0.103, 0.106, 0.11, 0.13}, 30, 3)), 19);
}

TEST(AThirdOfAPercentDifference, IsFoundUnderOnePercentNoiseInThousandsOfBlocks) {
  // Each of a thousand shuffles would compare 4.5 million pairs of blocks, for each setting, were blocks not condensed.
  SyntheticNoise noise(7);
  const IndifferenceSet set = indifference_set(measure(noise, {0.1, 0.1, 0.1003}, 3000, 0.01));
  EXPECT_THAT(set.members, ElementsAre(0, 1));
  EXPECT_LT(set.to_best[2].interval.high - set.to_best[2].interval.low, 0.003);
}

TEST(ANoisyBest, IsNotLeftOutBecauseTheOthersNoiseIsSmall) {
  const auto leaves_out = [](SyntheticNoise& noise) {
    auto measured = measure(noise, std::vector<double>(6, 0.1), 20, 0.005);
    measured[0] = measure(noise, {0.1}, 20, 0.02)[0];
    return !is_member(indifference_set(measured), 0);
  };
  EXPECT_LE(count(100, 5, leaves_out), 5);
}

TEST(IndifferenceSet, HoldsTheBestAndWhatCannotBeToldFromIt) {
  // Setting 1 is now a little above, now a little below setting 2; setting 0 takes twice the time.
  const std::vector<double> alternating = {1.01, 0.99, 1.02, 0.99, 1.01, 0.98, 1.01, 0.99, 1.02, 1.01};
  const std::vector<std::vector<double>> measured = {std::vector<double>(10, 2.0), alternating, std::vector<double>(10, 1.0)};
  const IndifferenceSet set = indifference_set(measured);
  EXPECT_EQ(set.best, 2);
  EXPECT_THAT(set.members, ElementsAre(1, 2));
}

TEST(IndifferenceSet, GivesEveryRatioToTheBest) {
  const std::vector<std::vector<double>> measured = {{2, 4, 6, 8, 10, 12}, {1, 2, 3, 4, 5, 6}, {3, 6, 9, 12, 15, 18}};
  const IndifferenceSet set = indifference_set(measured);
  ASSERT_EQ(set.to_best.size(), 3);
  EXPECT_DOUBLE_EQ(set.to_best[0].ratio, 2);
  EXPECT_EQ(set.to_best[1].ratio, 1);
  EXPECT_EQ(set.to_best[1].interval.low, 1);
  EXPECT_EQ(set.to_best[1].interval.high, 1);
  EXPECT_DOUBLE_EQ(set.to_best[2].ratio, 3);
  EXPECT_THAT(set.members, ElementsAre(1));
}

TEST(IndifferenceSet, OfOneSettingIsThatSetting) {
  const IndifferenceSet set = indifference_set({{1, 2, 3, 4}});
  EXPECT_EQ(set.best, 0);
  EXPECT_THAT(set.members, ElementsAre(0));
}

TEST(IndifferenceSet, ExcludesNothingOnFiveBlocks) {
  EXPECT_THAT(indifference_set({{1, 1, 1, 1, 1}, {9, 9, 8, 9, 9}}).members, ElementsAre(0, 1));
}

TEST(IndifferenceSet, AndAFitOfBlocksRefuseWhatHasNoAnswer) {
  for (const std::vector<std::vector<double>>& measured :
       std::vector<std::vector<std::vector<double>>>{{},
                                                     {{}, {}},
                                                     {{1, 2}, {1}},
                                                     {{1, 2}, {1, 0}},
                                                     {{1, 2}, {1, std::nan("")}},
                                                     {{1, 2}, {1, std::numeric_limits<double>::infinity()}}}) {
    EXPECT_THROW(indifference_set(measured), std::invalid_argument);
    EXPECT_THROW(fit_blocks(measured), std::invalid_argument);
  }
}

}  // namespace
}  // namespace firkin
