// The ratio of two settings, measured in the same blocks.
#include "firkin/stats/estimates.h"

#include "../test.h"
#include "synthetic_noise.h"

namespace firkin {
namespace {

constexpr double kTrueRatio = 0.97;

struct Pair {
  std::vector<double> a;
  std::vector<double> reference;
};

// Blocks of both settings, 1 % noise of their own each, times what `common` says the machine does in that block.
Pair measure_pair(SyntheticNoise& noise, const std::vector<double>& common) {
  Pair pair;
  for (const double machine : common) {
    pair.a.push_back(kTrueRatio * 0.1 * machine * std::exp(0.01 * noise.normal()));
    pair.reference.push_back(0.1 * machine * std::exp(0.01 * noise.normal()));
  }
  return pair;
}

// Percent of trials in which the 95 % interval holds the true ratio.
double coverage(size_t blocks, const auto& common_of_trial) {
  constexpr int kTrials = 1000;
  SyntheticNoise noise(1);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Pair pair = measure_pair(noise, common_of_trial(noise, blocks));
    if (paired_ratio(pair.a, pair.reference).interval.contains(kTrueRatio)) ++covered;
  }
  return 100.0 * covered / kTrials;
}

class PairedCoverage : public testing::TestWithParam<size_t> {};

TEST_P(PairedCoverage, IsNinetyTwoToNinetyEightPercentUnderLinearDrift) {
  const double percent = coverage(GetParam(), [](SyntheticNoise&, size_t blocks) {
    std::vector<double> drift(blocks);
    for (size_t block = 0; block < blocks; ++block) drift[block] = 1 + 0.5 * static_cast<double>(block) / static_cast<double>(blocks);
    return drift;
  });
  EXPECT_THAT(percent, AllOf(Ge(92), Le(98)));
}

TEST_P(PairedCoverage, IsNinetyTwoToNinetyEightPercentOnAMachineWithSlowNoise) {
  const double percent = coverage(GetParam(), [](SyntheticNoise& noise, size_t blocks) {
    std::vector<double> slow = noise.series(blocks, 0.9);
    for (double& value : slow) value = std::exp(0.1 * value);
    return slow;
  });
  EXPECT_THAT(percent, AllOf(Ge(92), Le(98)));
}

INSTANTIATE_TEST_SUITE_P(Blocks, PairedCoverage, Values(10, 30, 100));

TEST(PairedRatio, IsTheMedianOfTheMeansOfEveryTwoBlocks) {
  // Logarithms of base 2: 1, -1, 2. Means of every two, each with itself as well: -1, 0, 0.5, 1, 1.5, 2; the median is 0.75.
  EXPECT_DOUBLE_EQ(paired_ratio(std::vector<double>{2, 1, 8}, std::vector<double>{1, 2, 2}).ratio, std::exp2(0.75));
}

TEST(PairedRatio, OfSixBlocksLiesBetweenTheirLeastAndTheirGreatestRatio) {
  // Wilcoxon: all six signs are the same in 2 of 64 cases, so the range holds in 96.9 %.
  const PairedRatio ratio = paired_ratio(std::vector<double>{2, 1, 8, 3, 5, 4}, std::vector<double>(6, 1));
  EXPECT_DOUBLE_EQ(ratio.interval.low, 1);
  EXPECT_NEAR(ratio.interval.high, 8, 1e-14);
}

TEST(PairedRatio, LosesWhatBothHaveInCommon) {
  // A machine that becomes ten times slower, and a setting that always takes half the time.
  const PairedRatio half = paired_ratio(std::vector<double>{1, 2, 4, 8, 9, 10}, std::vector<double>{2, 4, 8, 16, 18, 20});
  EXPECT_NEAR(half.ratio, 0.5, 1e-15);
  EXPECT_NEAR(half.interval.low, 0.5, 1e-15);
  EXPECT_NEAR(half.interval.high, 0.5, 1e-15);
}

TEST(PairedRatio, IsHardlyMovedByAnOutlier) {
  SyntheticNoise noise(3);
  Pair pair = measure_pair(noise, std::vector<double>(20, 1.0));
  const PairedRatio clean = paired_ratio(pair.a, pair.reference);
  pair.a[7] *= 100;
  const PairedRatio disturbed = paired_ratio(pair.a, pair.reference);
  EXPECT_NEAR(disturbed.ratio, clean.ratio, 0.003);
  EXPECT_LT(disturbed.interval.high, clean.interval.high + 0.01);
}

TEST(PairedRatio, TakesThousandsOfBlocks) {
  SyntheticNoise noise(4);
  const Pair pair = measure_pair(noise, std::vector<double>(5000, 1.0));
  EXPECT_NEAR(paired_ratio(pair.a, pair.reference).ratio, kTrueRatio, 0.001);
}

// Block times of one run with 3 % log-normal noise.
std::vector<double> run_of(SyntheticNoise& noise, double median_s, size_t blocks, double correlation) {
  std::vector<double> times = noise.series(blocks, correlation);
  for (double& time : times) time = median_s * std::exp(0.03 * time);
  return times;
}

TEST(PairedRatio, OfFiveBlocksIsUnbounded) {
  const Interval interval = paired_ratio(std::vector<double>{1, 2, 3, 4, 5}, std::vector<double>{1, 2, 3, 4, 5}).interval;
  EXPECT_EQ(interval.low, 0);
  EXPECT_EQ(interval.high, std::numeric_limits<double>::infinity());
}

TEST(PairedRatio, InvertsWhenTheTwoChangePlaces) {
  SyntheticNoise noise(2);
  const std::vector<double> a = run_of(noise, 1, 20, 0.3), b = run_of(noise, 1.1, 20, 0.3);
  const PairedRatio forth = paired_ratio(b, a), back = paired_ratio(a, b);
  EXPECT_NEAR(forth.ratio * back.ratio, 1, 1e-12);
  EXPECT_NEAR(forth.interval.low * back.interval.high, 1, 1e-12);
}

TEST(PairedRatio, RefusesWhatHasNoAnswer) {
  const std::vector<double> two = {1, 2};
  for (const std::vector<double>& none :
       std::vector<std::vector<double>>{{}, {1, 0}, {1, -2}, {1, std::nan("")}, {1, std::numeric_limits<double>::infinity()}}) {
    EXPECT_THROW(paired_ratio(two, none), std::invalid_argument);
    EXPECT_THROW(paired_ratio(none, two), std::invalid_argument);
  }
  EXPECT_THROW(paired_ratio(two, std::vector<double>{1, 2, 3}), std::invalid_argument);
}

}  // namespace
}  // namespace firkin
