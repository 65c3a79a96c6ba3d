// Which settings can be told from the best one.
#include "firkin/stats/indifference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "synthetic_noise.h"

namespace firkin {
namespace {

using testing::ElementsAre;

// [setting][block], seconds: a drifting machine, and noise of each setting's own with this correlation between blocks.
std::vector<std::vector<double>> measure(SyntheticNoise& noise, const std::vector<double>& true_s, size_t blocks, double stdev,
                                         double correlation) {
  std::vector<std::vector<double>> measured;
  for (const double seconds : true_s) {
    std::vector<double> times = noise.series(blocks, correlation);
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

struct Case {
  size_t blocks;
  double correlation;
};

class EqualSettings : public testing::TestWithParam<Case> {};

TEST_P(EqualSettings, TwoAreDeclaredDifferentInAtMostFivePercent) {
  SyntheticNoise noise(1);
  int different = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const auto measured = measure(noise, {0.1, 0.1}, GetParam().blocks, 0.01, GetParam().correlation);
    if (indifference_set(measured, static_cast<uint64_t>(trial)).members.size() < 2) ++different;
  }
  EXPECT_LE(different, 50);
}

INSTANTIATE_TEST_SUITE_P(Noise, EqualSettings, testing::Values(Case{10, 0}, Case{10, 0.6}, Case{30, 0}, Case{30, 0.6}),
                         [](const auto& test) {
                           return "Blocks" + std::to_string(test.param.blocks) +
                                  (test.param.correlation > 0 ? "Correlated" : "Independent");
                         });

TEST(SixEqualSettings, TwoOfThemAreToldApartInAtMostFivePercentAlthoughTheLuckiestIsCalledBest) {
  SyntheticNoise noise(2);
  int told_apart = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const IndifferenceSet set = indifference_set(measure(noise, std::vector<double>(6, 0.1), 10, 0.01, 0), static_cast<uint64_t>(trial));
    if (is_member(set, 0) != is_member(set, 1)) ++told_apart;
  }
  EXPECT_LE(told_apart, 10);
}

TEST(AThreePercentDifference, IsFoundUnderOnePercentNoiseWithTwentyBlocks) {
  SyntheticNoise noise(3);
  int found = 0;
  for (int trial = 0; trial < 300; ++trial) {
    const IndifferenceSet set = indifference_set(measure(noise, {0.103, 0.1}, 20, 0.01, 0), static_cast<uint64_t>(trial));
    if (set.best == 1 && set.members.size() == 1) ++found;
  }
  EXPECT_GE(found, 285);
}

TEST(AThreePercentDifference, IsFoundAmongEightSettingsWithThirtyBlocks) {
  const std::vector<double> true_s = {0.12, 0.11, 0.103, 0.1, 0.103, 0.106, 0.11, 0.13};
  SyntheticNoise noise(4);
  int found = 0;
  for (int trial = 0; trial < 20; ++trial) {
    const IndifferenceSet set = indifference_set(measure(noise, true_s, 30, 0.01, 0), static_cast<uint64_t>(trial));
    if (set.best == 3 && set.members.size() == 1) ++found;
  }
  EXPECT_GE(found, 19);
}

TEST(IndifferenceSet, HoldsTheBestAndWhatCannotBeToldFromIt) {
  // Setting 1 is now a little above, now a little below setting 2; setting 0 takes twice the time.
  const std::vector<double> alternating = {1.01, 0.99, 1.02, 0.99, 1.01, 0.98, 1.01, 0.99, 1.02, 1.01};
  const std::vector<std::vector<double>> measured = {std::vector<double>(10, 2.0), alternating, std::vector<double>(10, 1.0)};
  const IndifferenceSet set = indifference_set(measured, 1);
  EXPECT_EQ(set.best, 2);
  EXPECT_THAT(set.members, ElementsAre(1, 2));
}

TEST(IndifferenceSet, GivesEveryRatioToTheBest) {
  const std::vector<std::vector<double>> measured = {{2, 4, 6, 8, 10}, {1, 2, 3, 4, 5}, {3, 6, 9, 12, 15}};
  const IndifferenceSet set = indifference_set(measured, 1);
  ASSERT_EQ(set.to_best.size(), 3);
  EXPECT_DOUBLE_EQ(set.to_best[0].ratio, 2);
  EXPECT_EQ(set.to_best[1].ratio, 1);
  EXPECT_EQ(set.to_best[1].interval.low, 1);
  EXPECT_EQ(set.to_best[1].interval.high, 1);
  EXPECT_DOUBLE_EQ(set.to_best[2].ratio, 3);
  EXPECT_THAT(set.members, ElementsAre(1));
}

TEST(IndifferenceSet, OfOneSettingIsThatSetting) {
  const IndifferenceSet set = indifference_set({{1, 2, 3, 4}}, 1);
  EXPECT_EQ(set.best, 0);
  EXPECT_THAT(set.members, ElementsAre(0));
}

TEST(IndifferenceSet, ExcludesNothingOnThreeBlocks) {
  EXPECT_THAT(indifference_set({{1, 1, 1}, {9, 9, 8}}, 1).members, ElementsAre(0, 1));
}

TEST(IndifferenceSet, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(indifference_set({}, 1), std::invalid_argument);
  EXPECT_THROW(indifference_set({{}, {}}, 1), std::invalid_argument);
  EXPECT_THROW(indifference_set({{1, 2}, {1}}, 1), std::invalid_argument);
  EXPECT_THROW(indifference_set({{1, 2}, {1, 0}}, 1), std::invalid_argument);
  EXPECT_THROW(indifference_set({{1, 2}, {1, std::nan("")}}, 1), std::invalid_argument);
  EXPECT_THROW(indifference_set({{1, 2}, {1, std::numeric_limits<double>::infinity()}}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace firkin
