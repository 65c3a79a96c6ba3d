// The ratio of two runs that shared no blocks.
#include "firkin/stats/estimates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "synthetic_noise.h"

namespace firkin {
namespace {

constexpr int kTrials = 1000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Block times of one run with 3 % log-normal noise.
std::vector<double> run_of(SyntheticNoise& noise, double median_s, size_t blocks, double correlation) {
  std::vector<double> times = noise.series(blocks, correlation);
  for (double& time : times) time = median_s * std::exp(0.03 * time);
  return times;
}

struct Case {
  size_t blocks_a;
  size_t blocks_b;
  double correlation;
};

class TwoRuns : public testing::TestWithParam<Case> {
 protected:
  // Trials in which the interval of b / a holds `value`, when b takes `true_ratio` times as long.
  int trials_that_hold(double value, double true_ratio) {
    SyntheticNoise noise(1);
    int held = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const std::vector<double> a = run_of(noise, 0.125, GetParam().blocks_a, GetParam().correlation);
      const std::vector<double> b = run_of(noise, 0.125 * true_ratio, GetParam().blocks_b, GetParam().correlation);
      if (unpaired_ratio(b, a).interval.contains(value)) ++held;
    }
    return held;
  }
};

TEST_P(TwoRuns, OfTheSameDistributionAreTheSameInNinetyTwoPercentOrMore) {
  EXPECT_GE(trials_that_hold(1, 1), 0.92 * kTrials);
}

TEST_P(TwoRuns, AreHardlyEverTheSameWhenOneTakesAFifthLonger) {
  EXPECT_LE(trials_that_hold(1, 1.2), 0.02 * kTrials);
}

INSTANTIATE_TEST_SUITE_P(Noise, TwoRuns,
                         testing::Values(Case{10, 10, 0}, Case{30, 30, 0}, Case{10, 30, 0}, Case{30, 30, 0.6}, Case{100, 30, 0.6}),
                         [](const auto& test) {
                           return "Blocks" + std::to_string(test.param.blocks_a) + "And" + std::to_string(test.param.blocks_b) +
                                  (test.param.correlation > 0 ? "Correlated" : "Independent");
                         });

TEST(UnpairedRatio, IsTheRatioOfTheMedians) {
  EXPECT_DOUBLE_EQ(unpaired_ratio(std::vector<double>{3, 9, 6, 1, 7}, std::vector<double>{2, 4, 1}).ratio, 3);
}

TEST(UnpairedRatio, OfRunsThatNeverVariedIsExact) {
  const PairedRatio ratio = unpaired_ratio(std::vector<double>(6, 3), std::vector<double>(8, 2));
  EXPECT_DOUBLE_EQ(ratio.interval.low, 1.5);
  EXPECT_DOUBLE_EQ(ratio.interval.high, 1.5);
}

TEST(UnpairedRatio, InvertsWhenTheTwoChangePlaces) {
  SyntheticNoise noise(2);
  const std::vector<double> a = run_of(noise, 1, 20, 0.3);
  const std::vector<double> b = run_of(noise, 1.1, 30, 0.3);
  const PairedRatio forth = unpaired_ratio(b, a);
  const PairedRatio back = unpaired_ratio(a, b);
  EXPECT_NEAR(forth.ratio * back.ratio, 1, 1e-12);
  EXPECT_NEAR(forth.interval.low * back.interval.high, 1, 1e-12);
}

// Settings that alternate are as far apart in every block, but two runs cannot know that.
TEST(UnpairedRatio, IsWiderThanThePairedOneWhereTheMachineIsWhatVaries) {
  SyntheticNoise noise(3);
  const std::vector<double> a = run_of(noise, 1, 20, 0);
  std::vector<double> b = a;
  for (double& time : b) time *= 1.01;
  EXPECT_TRUE(unpaired_ratio(b, a).interval.contains(1));
  EXPECT_FALSE(paired_ratio(b, a).interval.contains(1));
}

TEST(UnpairedRatio, IsUnboundedOnFiveSamples) {
  const Interval interval = unpaired_ratio(std::vector<double>{1, 2, 3, 4, 5, 6}, std::vector<double>{1, 2, 3, 4, 5}).interval;
  EXPECT_EQ(interval.low, 0);
  EXPECT_EQ(interval.high, kInfinity);
}

TEST(UnpairedRatio, RefusesWhatHasNoAnswer) {
  const std::vector<double> four = {1, 2, 3, 4};
  EXPECT_THROW(unpaired_ratio(std::vector<double>{}, four), std::invalid_argument);
  EXPECT_THROW(unpaired_ratio(four, std::vector<double>{1, 0}), std::invalid_argument);
  EXPECT_THROW(unpaired_ratio(std::vector<double>{1, kInfinity}, four), std::invalid_argument);
}

}  // namespace
}  // namespace firkin
