// Which samples are flagged as outliers.
#include "firkin/stats/outliers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <vector>

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

}  // namespace
}  // namespace firkin
