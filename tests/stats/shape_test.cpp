// Which samples are flagged as outliers, and which series as two modes.
#include "firkin/stats/block_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

#include "synthetic_noise.h"

namespace firkin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(FindOutliers, FlagsBothASlowAndAFastSample) {
  // Median 10, deviations 1 1 0 1 1 40 9: their median is 1, so the limit is 3.5 * 1.4826 = 5.19.
  EXPECT_THAT(find_outliers(std::vector<double>{9, 11, 10, 9, 11, 50, 1}), ElementsAre(5, 6));
}

TEST(FindOutliers, FlagsNothingInAnEvenSpread) {
  EXPECT_THAT(find_outliers(std::vector<double>{1, 2, 3, 4, 5, 6, 7}), IsEmpty());
}

TEST(FindOutliers, OutliersDoNotHideEachOther) {
  // The standard deviation of this sample is 44, so a three-sigma rule would flag nothing.
  EXPECT_THAT(find_outliers(std::vector<double>{10, 11, 9, 10, 11, 9, 10, 100, 100, 101}), ElementsAre(7, 8, 9));
}

TEST(FindOutliers, FindsTheOneThatDiffersAmongEqualValues) {
  // The median deviation is 0; the mean deviation is 1, so the limit is 3.5 * 1.2533 = 4.39.
  EXPECT_THAT(find_outliers(std::vector<double>{5, 5, 5, 5, 5, 5, 5, 13}), ElementsAre(7));
}

TEST(FindOutliers, FlagsNothingWhenAllAreEqual) {
  EXPECT_THAT(find_outliers(std::vector<double>{5, 5, 5}), IsEmpty());
}

TEST(FindOutliers, AThresholdChangesTheLimit) {
  // Median 4, median deviation 2, so one standard deviation is 2.97; the ends lie 3 away.
  const std::vector<double> values = {1, 2, 3, 4, 5, 6, 7};
  EXPECT_THAT(find_outliers(values, 1.0), ElementsAre(0, 6));
}

TEST(FindOutliers, RefusesWhatHasNoAnswer) {
  EXPECT_THROW(find_outliers(std::vector<double>{}), std::invalid_argument);
  EXPECT_THROW(find_outliers(std::vector<double>{1, std::nan("")}), std::invalid_argument);
  EXPECT_THROW(find_outliers(std::vector<double>{1, 2}, 0), std::invalid_argument);
}

TEST(FindTwoModes, GivesBothAndTheShareOfTheHigher) {
  const auto modes = find_two_modes(std::vector<double>{2.0, 7.1, 2.1, 2.2, 7.0, 2.0, 1.9, 2.1, 6.8, 2.0, 2.1, 7.2, 2.3, 2.0, 7.3});
  ASSERT_TRUE(modes);
  EXPECT_DOUBLE_EQ(modes->low, 2.05);
  EXPECT_DOUBLE_EQ(modes->high, 7.1);
  EXPECT_DOUBLE_EQ(modes->high_share, 1.0 / 3);
}

TEST(FindTwoModes, AreFoundDespiteAFewStraysBetweenThem) {
  SyntheticNoise noise(1);
  std::vector<double> call_ms;
  for (int i = 0; i < 100; ++i) call_ms.push_back((i % 3 == 0 ? 7 : 2) * std::exp(0.1 * noise.normal()));
  for (const double stray : {3.5, 4.0, 4.5}) call_ms.push_back(stray);
  ASSERT_TRUE(find_two_modes(call_ms));
  EXPECT_NEAR(find_two_modes(call_ms)->low, 2, 0.1);
  EXPECT_NEAR(find_two_modes(call_ms)->high, 7, 0.3);
}

TEST(FindTwoModes, ASlowSampleInSixIsAnOutlierAndNoMode) {
  EXPECT_FALSE(find_two_modes(std::vector<double>{2, 2.1, 1.9, 2, 2.1, 7, 2, 2.1, 1.9, 2, 2.2, 7}));
}

TEST(FindTwoModes, AreSeldomSeenInNoiseOfOne) {
  SyntheticNoise noise(2);
  for (const size_t samples : {12, 20, 100}) {
    int found = 0;
    for (int trial = 0; trial < 1000; ++trial) {
      std::vector<double> times = noise.series(samples, 0);
      for (double& time : times) time = std::exp(0.2 * time);
      found += find_two_modes(times) ? 1 : 0;
    }
    EXPECT_LE(found, 10) << samples << " samples";
  }
}

TEST(FindTwoModes, NeedsTwelveValues) {
  EXPECT_FALSE(find_two_modes(std::vector<double>{1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9}));
  EXPECT_TRUE(find_two_modes(std::vector<double>{1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9}));
  EXPECT_FALSE(find_two_modes(std::vector<double>(20, 1)));
}

}  // namespace
}  // namespace firkin
