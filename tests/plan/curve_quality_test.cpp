#include "firkin/plan/curve_quality.h"

#include <gtest/gtest.h>

#include "helpers.h"

namespace firkin {
namespace {

TEST(LeaveOneOutOfCurve, PredictsEachInnerSizeFromItsNeighbours) {
  // Without 2000: from (1000, 1) to (4000, 4) is 2 there, measured 4: half. Without 4000: from (2000, 4) to (8000, 4) is 4, exact.
  const auto quality = leave_one_out_of_curve({{1000, 1}, {2000, 4}, {4000, 4}, {8000, 4}});
  ASSERT_TRUE(quality);
  EXPECT_NEAR(quality->largest_relative_error, 0.5, 1e-12);
  EXPECT_EQ(quality->worst_bytes, 2000);
  EXPECT_NEAR(quality->median_relative_error, 0.25, 1e-12);
}

TEST(LeaveOneOutOfCurve, MergesRepeatedSizesFirst) {
  EXPECT_FALSE(leave_one_out_of_curve({{1000, 1}, {1000, 2}, {2000, 4}}));
}

TEST(LeaveOneOutOfAlphaBeta, IsNothingForALine) {
  const auto quality = leave_one_out_of_alpha_beta({{1000, 2e-3}, {2000, 3e-3}, {4000, 5e-3}, {8000, 9e-3}});
  ASSERT_TRUE(quality);
  EXPECT_NEAR(quality->largest_relative_error, 0, 1e-9);
}

TEST(LeaveOneOutOfAlphaBeta, FindsThePointOffTheLine) {
  const auto quality = leave_one_out_of_alpha_beta({{1000, 2e-3}, {2000, 3e-3}, {3000, 8e-3}, {4000, 5e-3}, {8000, 9e-3}});
  ASSERT_TRUE(quality);
  EXPECT_EQ(quality->worst_bytes, 3000);
  EXPECT_NEAR(quality->largest_relative_error, 0.5, 1e-9);  // the others' line has 4 ms there
}

TEST(LeaveOneOut, NeedsThreeSizes) {
  EXPECT_FALSE(leave_one_out_of_alpha_beta({{1000, 1}, {2000, 2}}));
}

}  // namespace
}  // namespace firkin
