#include "firkin/plan/stragglers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "helpers.h"

namespace firkin {
namespace {

TEST(Straggler, IsTheExpectedMaximumOfTheDraws) {
  // Two draws from {1, 3}: 1 with probability 1/4, else 3.
  const std::vector<double> samples = {3, 1};
  const Straggler straggler = expected_straggler(samples, 2);
  EXPECT_DOUBLE_EQ(straggler.expected_max_s, 2.5);
  EXPECT_DOUBLE_EQ(straggler.factor, 1.25);
  EXPECT_FALSE(straggler.beyond_samples);
}

TEST(Straggler, OfOneRankIsTheMean) {
  const std::vector<double> samples = {1, 2, 6};
  EXPECT_DOUBLE_EQ(expected_straggler(samples, 1).expected_max_s, 3);
}

TEST(Straggler, OfManyRanksIsTheLargestSampleAndSaysThatItIsTooLittle) {
  const std::vector<double> samples = {1, 2, 6};
  const Straggler straggler = expected_straggler(samples, 65536);
  EXPECT_DOUBLE_EQ(straggler.expected_max_s, 6);
  EXPECT_TRUE(straggler.beyond_samples);
}

TEST(Straggler, WithinTheSamplesHasNoOtherTail) {
  const std::vector<double> samples = {1, 2, 6};
  const Straggler straggler = expected_straggler(samples, 3);
  EXPECT_FALSE(straggler.beyond_samples);
  EXPECT_DOUBLE_EQ(straggler.tail_factor, straggler.factor);
}

TEST(Straggler, BeyondTheSamplesHasAnExponentialTail) {
  // 1 plus the quantiles of an exponential distribution of mean 0.1, of which P draws have the expected maximum 1 + 0.1 H_P.
  std::vector<double> samples;
  for (int i = 0; i < 1000; ++i) samples.push_back(1 - 0.1 * std::log(1 - (i + 0.5) / 1000));
  const double median_s = 1 + 0.1 * std::log(2);
  const double expected = (1 + 0.1 * (std::log(65536) + 0.5772)) / median_s;
  const Straggler straggler = expected_straggler(samples, 65536);
  EXPECT_NEAR(straggler.tail_factor, expected, 0.01 * expected);
  EXPECT_LT(straggler.factor, straggler.tail_factor);  // not above the largest of the 1000
}

TEST(Straggler, TheTailStartsAtTheLargestSampleBelowIt) {
  // A tenth of three samples is the last one: 2 + (6 - 2) (ln(65536 / 3) + 0.5772), and the median is 2.
  const std::vector<double> samples = {1, 2, 6};
  EXPECT_NEAR(expected_straggler(samples, 65536).tail_factor, (2 + 4 * (std::log(65536.0 / 3) + 0.5772)) / 2, 1e-3);
}

TEST(Straggler, BeyondASingleSampleIsThatSample) {
  const std::vector<double> one = {2};
  EXPECT_DOUBLE_EQ(expected_straggler(one, 100).tail_factor, 1);
}

TEST(Straggler, OfEqualRanksIsNone) {
  const std::vector<double> samples(10, 0.5);
  EXPECT_DOUBLE_EQ(expected_straggler(samples, 1000).factor, 1);
  EXPECT_DOUBLE_EQ(expected_straggler(samples, 1000).tail_factor, 1);
}

TEST(Straggler, RejectsWhatIsNoMeasurement) {
  const std::vector<double> none, negative = {1, -1}, not_a_number = {std::nan("")}, one = {1};
  EXPECT_EQ(error_of([&] { expected_straggler(none, 2); }), "no rank's time was measured; expected at least one");
  EXPECT_EQ(error_of([&] { expected_straggler(negative, 2); }), "a rank took -1 s; expected more than 0");
  EXPECT_EQ(error_of([&] { expected_straggler(not_a_number, 2); }), "a rank took nan s; expected more than 0");
  EXPECT_EQ(error_of([&] { expected_straggler(one, 0); }), "the slowest of 0 ranks; expected at least 1");
}

}  // namespace
}  // namespace firkin
