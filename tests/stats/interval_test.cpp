// What an interval promises: mostly its coverage, on synthetic noise whose true median is known.
#include "firkin/stats/interval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "firkin/stats/summary.h"
#include "synthetic_noise.h"

namespace firkin {
namespace {

using testing::AllOf;
using testing::Ge;
using testing::Le;

constexpr int kTrials = 1000;
constexpr int kResamples = 300;   // fewer than the default, for speed; the coverage is the same
constexpr double kTrueS = 0.125;  // median step time, seconds

// Step times with log-normal noise of 5 %.
std::vector<double> step_times(SyntheticNoise& noise, size_t samples, double correlation) {
  std::vector<double> times = noise.series(samples, correlation);
  for (double& time : times) time = kTrueS * std::exp(0.05 * time);
  return times;
}

struct Case {
  std::string noise;
  double correlation;
  size_t samples;
};

class IntervalCoverage : public testing::TestWithParam<Case> {};

TEST_P(IntervalCoverage, IsNinetyTwoToNinetyEightPercent) {
  SyntheticNoise noise(1);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const std::vector<double> times = step_times(noise, GetParam().samples, GetParam().correlation);
    if (bootstrap_median(times, static_cast<uint64_t>(trial), 0.95, kResamples).contains(kTrueS)) ++covered;
  }
  EXPECT_THAT(100.0 * covered / kTrials, AllOf(Ge(92), Le(98)));
}

std::vector<Case> coverage_cases() {
  std::vector<Case> cases;
  for (const size_t samples : {10, 20, 30, 100}) {
    cases.push_back({"Independent", 0, samples});
    cases.push_back({"Correlation30", 0.3, samples});
    cases.push_back({"Correlation60", 0.6, samples});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Noise, IntervalCoverage, testing::ValuesIn(coverage_cases()),
                         [](const auto& test) { return test.param.noise + "Samples" + std::to_string(test.param.samples); });

TEST(IntervalOfAFewSamples, CoversInAtLeastNinetyPercentEvenWhenCorrelated) {
  for (const size_t samples : {4, 6}) {
    SyntheticNoise noise(2);
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      const std::vector<double> times = step_times(noise, samples, 0.6);
      if (bootstrap_median(times, static_cast<uint64_t>(trial), 0.95, kResamples).contains(kTrueS)) ++covered;
    }
    EXPECT_GE(covered, 0.90 * kTrials) << samples << " samples";
  }
}

TEST(IntervalUnderSlowAndFastNoise, CoversInAtLeastNinetyPercentWithAHundredSamples) {
  SyntheticNoise noise(10);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> values = noise.series(100, 0.9);
    for (double& value : values) value = 0.6 * value + 0.8 * noise.normal();
    if (bootstrap_median(values, static_cast<uint64_t>(trial), 0.95, kResamples).contains(0)) ++covered;
  }
  EXPECT_GE(covered, 0.90 * kTrials);
}

class IntervalUnderDrift : public testing::TestWithParam<size_t> {};

// Two standard deviations from the first sample to the last, and four.
TEST_P(IntervalUnderDrift, CoversTheMiddleOfTheMeasurementInNinetyTwoToNinetyEightPercent) {
  for (const double drift : {0.1, 0.2}) {
    SyntheticNoise noise(3);
    int covered = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> times = step_times(noise, GetParam(), 0);
      for (size_t i = 0; i < times.size(); ++i) {
        times[i] *= std::exp(drift * ((static_cast<double>(i) + 0.5) / static_cast<double>(times.size()) - 0.5));
      }
      if (bootstrap_median(times, static_cast<uint64_t>(trial), 0.95, kResamples).contains(kTrueS)) ++covered;
    }
    EXPECT_THAT(100.0 * covered / kTrials, AllOf(Ge(92), Le(98))) << "drift " << drift;
  }
}

TEST(IntervalUnderDriftOfTenSamples, CoversInAtLeastNinetyTwoPercent) {
  SyntheticNoise noise(3);
  int covered = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> times = step_times(noise, 10, 0);
    for (size_t i = 0; i < times.size(); ++i) times[i] *= std::exp(0.1 * ((static_cast<double>(i) + 0.5) / 10 - 0.5));
    if (bootstrap_median(times, static_cast<uint64_t>(trial), 0.95, kResamples).contains(kTrueS)) ++covered;
  }
  EXPECT_GE(covered, 0.92 * kTrials);
}

INSTANTIATE_TEST_SUITE_P(Samples, IntervalUnderDrift, testing::Values(16, 20, 30, 100));

// For a normal sample the median's standard error is sqrt(pi / 2) that of the mean: the best that an interval of the median could do.
TEST(IntervalWidth, IsAtMostAFifthAboveTheBestPossibleForThirtyIndependentSamples) {
  SyntheticNoise noise(4);
  std::vector<double> widths;
  for (int trial = 0; trial < 300; ++trial) {
    const Interval interval = bootstrap_median(noise.series(30, 0), static_cast<uint64_t>(trial), 0.95, kResamples);
    widths.push_back(interval.high - interval.low);
  }
  const double best = 2 * 1.96 * std::sqrt(std::acos(-1.0) / 2) / std::sqrt(30.0);
  EXPECT_LT(median(widths), 1.2 * best);
}

TEST(IntervalWidth, IsHardlyMovedByAnOutlier) {
  SyntheticNoise noise(5);
  std::vector<double> times = step_times(noise, 30, 0);
  const Interval clean = bootstrap_median(times, 1);
  *std::max_element(times.begin(), times.end()) *= 100;
  const Interval disturbed = bootstrap_median(times, 1);
  EXPECT_LT(disturbed.high - disturbed.low, 1.25 * (clean.high - clean.low));
}

TEST(IntervalWidth, GrowsWithConfidence) {
  SyntheticNoise noise(6);
  const std::vector<double> times = step_times(noise, 30, 0);
  const Interval narrow = bootstrap_median(times, 1, 0.5);
  const Interval wide = bootstrap_median(times, 1, 0.99);
  EXPECT_LT(wide.low, narrow.low);
  EXPECT_GT(wide.high, narrow.high);
}

TEST(BootstrapMedian, IsTheSameForTheSameSeed) {
  SyntheticNoise noise(7);
  const std::vector<double> times = step_times(noise, 20, 0.3);
  const Interval first = bootstrap_median(times, 11);
  const Interval again = bootstrap_median(times, 11);
  EXPECT_EQ(first.low, again.low);
  EXPECT_EQ(first.high, again.high);
  EXPECT_NE(first.low, bootstrap_median(times, 12).low);
}

TEST(BootstrapMedian, FollowsTheUnit) {
  SyntheticNoise noise(8);
  std::vector<double> seconds = step_times(noise, 20, 0);
  std::vector<double> milliseconds = seconds;
  for (double& time : milliseconds) time *= 1000;
  EXPECT_NEAR(bootstrap_median(milliseconds, 1).low, 1000 * bootstrap_median(seconds, 1).low, 1e-9);
}

TEST(BootstrapMedian, HoldsTheSamplesOwnMedian) {
  SyntheticNoise noise(9);
  const std::vector<double> values = noise.series(15, 0.3);
  EXPECT_TRUE(bootstrap_median(values, 1).contains(median(values)));
}

TEST(BootstrapMedian, AcceptsNegativeValues) {
  const Interval interval = bootstrap_median(std::vector<double>{-3, -1, -2, -4, -2.5, -1.5}, 1);
  EXPECT_TRUE(interval.contains(-2.25));
  EXPECT_GT(interval.high, interval.low);
}

TEST(BootstrapMedian, OfEqualValuesIsThatValue) {
  const Interval interval = bootstrap_median(std::vector<double>(10, 0.0), 1);
  EXPECT_EQ(interval.low, 0);
  EXPECT_EQ(interval.high, 0);
}

TEST(BootstrapMedian, OfFewerThanFourSamplesIsUnbounded) {
  const Interval of_times = bootstrap_median(std::vector<double>{1, 2, 3}, 1);
  EXPECT_EQ(of_times.low, 0);
  EXPECT_EQ(of_times.high, std::numeric_limits<double>::infinity());
  EXPECT_EQ(bootstrap_median(std::vector<double>{-1, 2, 3}, 1).low, -std::numeric_limits<double>::infinity());
}

TEST(BootstrapMedian, RefusesWhatHasNoAnswer) {
  const std::vector<double> samples = {1, 2, 3, 4};
  EXPECT_THROW(bootstrap_median(std::vector<double>{}, 1), std::invalid_argument);
  EXPECT_THROW(bootstrap_median(std::vector<double>{1, 2, 3, std::nan("")}, 1), std::invalid_argument);
  EXPECT_THROW(bootstrap_median(samples, 1, 0), std::invalid_argument);
  EXPECT_THROW(bootstrap_median(samples, 1, 1), std::invalid_argument);
  EXPECT_THROW(bootstrap_median(samples, 1, 0.95, 0), std::invalid_argument);
}

TEST(Interval, OverlapsWhenItSharesAPoint) {
  EXPECT_TRUE((Interval{1, 2}.overlaps({2, 3})));
  EXPECT_FALSE((Interval{1, 2}.overlaps({2.1, 3})));
  EXPECT_TRUE((Interval{1, 4}.overlaps({2, 3})));
}

}  // namespace
}  // namespace firkin
