// The ratio of two settings that were measured in the same blocks.
#include "firkin/stats/paired.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "synthetic_noise.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::Le;

constexpr int kTrials = 1000;
constexpr int kResamples = 200;
constexpr double kTrueRatio = 0.97;

struct Pair {
  std::vector<double> a;
  std::vector<double> reference;
};

// Blocks of both settings, 1 % noise of their own each, times what `common` says the machine does in that block.
Pair measure(SyntheticNoise& noise, const std::vector<double>& common) {
  Pair pair;
  for (const double machine : common) {
    pair.a.push_back(kTrueRatio * 0.1 * machine * std::exp(0.01 * noise.normal()));
    pair.reference.push_back(0.1 * machine * std::exp(0.01 * noise.normal()));
  }
  return pair;
}

// Percent of trials in which the 95 % interval holds the true ratio.
double coverage(size_t blocks, const auto& common_of_trial) {
  SyntheticNoise noise(1);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Pair pair = measure(noise, common_of_trial(noise, blocks));
    const auto seed = static_cast<uint64_t>(trial);
    if (paired_ratio(pair.a, pair.reference, seed, 0.95, kResamples).interval.contains(kTrueRatio)) ++covered;
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

INSTANTIATE_TEST_SUITE_P(Blocks, PairedCoverage, testing::Values(10, 30, 100));

TEST(PairedRatio, IsTheMedianOfTheBlocksRatios) {
  // Ratios 2, 0.5, 4: the median is 2.
  EXPECT_DOUBLE_EQ(paired_ratio(std::vector<double>{2, 1, 8}, std::vector<double>{1, 2, 2}, 1).ratio, 2);
}

TEST(PairedRatio, OfAnEvenNumberOfBlocksIsTheGeometricMeanOfTheMiddleTwo) {
  EXPECT_DOUBLE_EQ(paired_ratio(std::vector<double>{1, 2, 8, 16}, std::vector<double>{1, 1, 1, 1}, 1).ratio, 4);
}

TEST(PairedRatio, LosesWhatBothHaveInCommon) {
  // A machine that becomes ten times slower, and a setting that always takes half the time.
  const PairedRatio half = paired_ratio(std::vector<double>{1, 2, 4, 8, 10}, std::vector<double>{2, 4, 8, 16, 20}, 1);
  EXPECT_EQ(half.ratio, 0.5);
  EXPECT_NEAR(half.interval.low, 0.5, 1e-15);
  EXPECT_NEAR(half.interval.high, 0.5, 1e-15);
}

TEST(PairedRatio, InvertsWhenTheTwoChangePlaces) {
  SyntheticNoise noise(2);
  const Pair pair = measure(noise, std::vector<double>(20, 1.0));
  const PairedRatio forth = paired_ratio(pair.a, pair.reference, 1);
  const PairedRatio back = paired_ratio(pair.reference, pair.a, 1);
  EXPECT_NEAR(forth.ratio * back.ratio, 1, 1e-12);
  EXPECT_NEAR(forth.interval.low * back.interval.high, 1, 0.002);  // the two bootstraps draw different series
}

TEST(PairedRatio, RefusesWhatHasNoAnswer) {
  const std::vector<double> two = {1, 2};
  EXPECT_THROW(paired_ratio(std::vector<double>{}, std::vector<double>{}, 1), std::invalid_argument);
  EXPECT_THROW(paired_ratio(two, std::vector<double>{1, 2, 3}, 1), std::invalid_argument);
  EXPECT_THROW(paired_ratio(two, std::vector<double>{1, 0}, 1), std::invalid_argument);
  EXPECT_THROW(paired_ratio(std::vector<double>{1, -2}, two, 1), std::invalid_argument);
  EXPECT_THROW(paired_ratio(two, std::vector<double>{1, std::nan("")}, 1), std::invalid_argument);
  EXPECT_THROW(paired_ratio(two, std::vector<double>{1, std::numeric_limits<double>::infinity()}, 1), std::invalid_argument);
}

}  // namespace
}  // namespace firkin
