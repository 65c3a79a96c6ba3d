// What the summaries say about samples small enough to work out by hand.
#include "firkin/stats/estimates.h"

#include "../test.h"

namespace firkin {
namespace {

const std::vector<double> kOdd = {9, 1, 4};
const std::vector<double> kEven = {9, 1, 4, 2};

TEST(Median, IsTheMiddleOrTheMeanOfTheTwoMiddleValues) {
  EXPECT_EQ(median(kOdd), 4);
  EXPECT_EQ(median(kEven), 3);
  EXPECT_EQ(median(std::vector{7.5}), 7.5);
}

TEST(Median, LeavesTheSampleInItsOrder) {
  const std::vector<double> before = kEven;
  median(kEven);
  EXPECT_EQ(kEven, before);
}

TEST(Quantile, InterpolatesLinearlyBetweenOrderStatistics) {
  // Ranks 0..3 hold 1, 2, 4, 9; q = 0.9 is rank 2.7, so 4 + 0.7 * 5.
  EXPECT_DOUBLE_EQ(quantile(kEven, 0.9), 7.5);
  EXPECT_DOUBLE_EQ(quantile(kEven, 0.25), 1.75);
  EXPECT_EQ(quantile(kEven, 0), 1);
  EXPECT_EQ(quantile(kEven, 1), 9);
}

TEST(Quantile, OutsideZeroToOneIsRefused) {
  EXPECT_THROW(quantile(kOdd, -0.01), std::invalid_argument);
  EXPECT_THROW(quantile(kOdd, 1.01), std::invalid_argument);
  EXPECT_THROW(quantile(kOdd, std::nan("")), std::invalid_argument);
}

TEST(Stdev, DividesByOneLessThanTheCount) {
  // Mean 4, squared deviations 25 + 9 + 0 + 4, divisor 3.
  EXPECT_DOUBLE_EQ(mean(kEven), 4);
  EXPECT_DOUBLE_EQ(stdev(kEven), std::sqrt(38.0 / 3));
  EXPECT_EQ(stdev(std::vector{7.5}), 0);
}

TEST(Summarize, FillsEveryField) {
  const Summary summary = summarize(kOdd);
  EXPECT_EQ(summary.median, 4);
  EXPECT_DOUBLE_EQ(summary.mean, 14.0 / 3);
  EXPECT_DOUBLE_EQ(summary.stdev, std::sqrt(49.0 / 3));  // (81 + 1 + 16 - 14^2 / 3) / 2
  EXPECT_EQ(summary.min, 1);
  EXPECT_EQ(summary.max, 9);
  EXPECT_DOUBLE_EQ(summary.p99, 8.9);  // rank 1.98: 4 + 0.98 * 5
  EXPECT_EQ(summary.count, 3);
}

TEST(EverySummary, RefusesAnEmptySampleAndAValueThatIsNotFinite) {
  for (const std::vector<double>& sample :
       std::vector<std::vector<double>>{{}, {1, std::nan(""), 2}, {1, std::numeric_limits<double>::infinity(), 2}}) {
    EXPECT_THROW(median(sample), std::invalid_argument);
    EXPECT_THROW(quantile(sample, 0.5), std::invalid_argument);
    EXPECT_THROW(mean(sample), std::invalid_argument);
    EXPECT_THROW(stdev(sample), std::invalid_argument);
    EXPECT_THROW(summarize(sample), std::invalid_argument);
  }
}

}  // namespace
}  // namespace firkin
