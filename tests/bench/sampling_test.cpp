#include "bench/chunks_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace firkin {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Alternating around `middle`; relative spread `spread`.
std::vector<double> noisy(double middle, double spread, int count = 8) {
  std::vector<double> samples;
  for (int i = 0; i < count; ++i) samples.push_back(middle * (1 + spread * (i % 4 - 1.5)));
  return samples;
}

TEST(WidestPoints, TakesTheThirdThatIsKnownLeastWellWidestFirst) {
  const std::vector<std::vector<double>> samples = {noisy(1, 0.01), noisy(1, 0.2), noisy(1, 0.02), noisy(1, 0.001), noisy(1, 0.1)};
  EXPECT_THAT(widest_points(samples, 10), ElementsAre(1, 4));
}

TEST(WidestPoints, ComparesWidthsRelativeToTheMedian) {
  EXPECT_THAT(widest_points({noisy(100, 0.01), noisy(0.1, 0.1)}, 1000), ElementsAre(1));
}

TEST(WidestPoints, PrefersPointsOfWhichNothingIsKnownYet) {
  EXPECT_THAT(widest_points({noisy(1, 0.3), {1, 1, 1}, noisy(1, 0.2)}, 10), ElementsAre(1));
}

TEST(WidestPoints, LeavesOutWhatNoLongerFitsIntoTheTime) {
  const std::vector<std::vector<double>> samples = {noisy(5, 0.5), noisy(1, 0.01), noisy(2, 0.1)};
  EXPECT_THAT(widest_points(samples, 3), ElementsAre(2));
  EXPECT_THAT(widest_points(samples, 1.5), ElementsAre(1));
  EXPECT_THAT(widest_points(samples, 0.5), IsEmpty());
  EXPECT_THAT(widest_points(samples, -1), IsEmpty());
}

TEST(WidestPoints, MovesOnOnceAPointIsKnownWell) {
  std::vector<std::vector<double>> samples = {noisy(1, 0.1), noisy(1, 0.05)};
  EXPECT_THAT(widest_points(samples, 10), ElementsAre(0));
  samples[0] = noisy(1, 0.1, 200);
  EXPECT_THAT(widest_points(samples, 10), ElementsAre(1));
}

}  // namespace
}  // namespace firkin
