#include "firkin/plan/scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "../stats/synthetic_noise.h"
#include "helpers.h"

namespace firkin {
namespace {

using Times = std::vector<std::vector<double>>;  // [rank][step]

TEST(Straggler, IsTheExpectedMaximumOfTheDraws) {
  // Of one rank two draws from {1, 3}: 1 with probability 1/4, else 3. One draw: 2.
  const Straggler straggler = expected_straggler({{3, 1}}, 2);
  EXPECT_NEAR(straggler.expected_max_s, 2.5, 1e-12);
  EXPECT_NEAR(straggler.factor, 1.25, 1e-12);
  EXPECT_FALSE(straggler.beyond_samples);
}

TEST(Straggler, OfAsManyRanksAsWereMeasuredIsNone) {
  // The profile is the slowest of these already.
  SyntheticNoise noise(1);
  Times times(8);
  for (std::vector<double>& rank : times) {
    for (const double value : noise.series(20, 0)) rank.push_back(std::exp(0.1 * value));
  }
  EXPECT_NEAR(expected_straggler(times, 8).factor, 1, 1e-12);
  EXPECT_GT(expected_straggler(times, 64).factor, 1.05);
}

TEST(Straggler, ARankThatIsAlwaysSlowIsInTheMeasuredMaximumAlready) {
  // One rank of eight takes twice as long in every step: 64 ranks have slow ones too, and wait no longer for them.
  SyntheticNoise noise(2);
  Times times(8);
  for (size_t rank = 0; rank < times.size(); ++rank) {
    for (const double value : noise.series(20, 0)) times[rank].push_back((rank == 5 ? 2 : 1) * std::exp(0.001 * value));
  }
  const Straggler straggler = expected_straggler(times, 64);
  EXPECT_NEAR(straggler.factor, 1, 0.003);
  EXPECT_NEAR(straggler.slowest_rank_ratio, 2, 0.01);
}

TEST(Straggler, AStepThatIsSlowForAllRanksMakesNoneWait) {
  SyntheticNoise noise(3);
  Times times(8);
  for (std::vector<double>& rank : times) {
    const std::vector<double> own = noise.series(20, 0);
    for (size_t step = 0; step < 20; ++step) rank.push_back((step % 4 == 0 ? 3 : 1) * std::exp(0.001 * own[step]));
  }
  EXPECT_NEAR(expected_straggler(times, 64).factor, 1, 0.003);
}

TEST(Straggler, OfManyRanksIsTheLargestSampleAndSaysThatItIsTooLittle) {
  const Straggler straggler = expected_straggler({{1, 2, 6}}, 65536);
  EXPECT_NEAR(straggler.expected_max_s, 6, 1e-9);
  EXPECT_TRUE(straggler.beyond_samples);
}

TEST(Straggler, WithinTheSamplesHasNoOtherTail) {
  const Straggler straggler = expected_straggler({{1, 2, 6}}, 3);
  EXPECT_FALSE(straggler.beyond_samples);
  EXPECT_DOUBLE_EQ(straggler.tail_factor, straggler.factor);
}

TEST(Straggler, BeyondTheSamplesHasAnExponentialTail) {
  // 1 plus the quantiles of an exponential distribution of mean 0.1, of which P draws have the expected maximum 1 + 0.1 H_P.
  Times times(1);
  for (int i = 0; i < 1000; ++i) times[0].push_back(1 - 0.1 * std::log(1 - (i + 0.5) / 1000));
  const double expected = (1 + 0.1 * (std::log(65536) + 0.5772)) / (1 + 0.1);
  const Straggler straggler = expected_straggler(times, 65536);
  EXPECT_NEAR(straggler.tail_factor, expected, 0.01 * expected);
  EXPECT_LT(straggler.factor, straggler.tail_factor);  // not above the largest of the 1000
}

TEST(Straggler, TheTailStartsAtTheLargestSampleBelowIt) {
  // A tenth of three samples is the last one: 2 + (6 - 2) (ln(65536 / 3) + 0.5772), and the mean is 3.
  EXPECT_NEAR(expected_straggler({{1, 2, 6}}, 65536).tail_factor, (2 + 4 * (std::log(65536.0 / 3) + 0.5772)) / 3, 1e-3);
}

TEST(Straggler, BeyondASingleSampleIsThatSample) {
  EXPECT_DOUBLE_EQ(expected_straggler({{2}}, 100).tail_factor, 1);
}

TEST(Straggler, OfEqualTimesIsNone) {
  EXPECT_NEAR(expected_straggler({std::vector<double>(10, 0.5)}, 1000).factor, 1, 1e-12);
  EXPECT_NEAR(expected_straggler({std::vector<double>(10, 0.5)}, 1000).tail_factor, 1, 1e-12);
}

TEST(Straggler, RejectsWhatIsNoMeasurement) {
  EXPECT_EQ(error_of([] { expected_straggler({}, 2); }), "no rank's time was measured; expected at least one");
  EXPECT_EQ(error_of([] { expected_straggler({{}}, 2); }), "no rank's time was measured; expected at least one");
  EXPECT_EQ(error_of([] { expected_straggler({{1, -1}}, 2); }), "a rank took -1 s; expected more than 0");
  EXPECT_EQ(error_of([] { expected_straggler({{std::nan("")}}, 2); }), "a rank took nan s; expected more than 0");
  EXPECT_EQ(error_of([] { expected_straggler({{1, 2}, {1}}, 2); }), "a rank has 1 times; expected 2, as many as the first");
  EXPECT_EQ(error_of([] { expected_straggler({{1}}, 0); }), "the slowest of 0 ranks; expected at least 1");
}

}  // namespace
}  // namespace firkin
