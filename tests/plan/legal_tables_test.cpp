// No legal table gives an absurd answer: one more rank, one more row, one more byte, or rows in another order change a prediction a little.

#include <random>

#include "../test.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/uncertainty.h"
#include "helpers.h"

namespace firkin {
namespace {

constexpr int64_t kMany = int64_t{32} << 20;

// Latency and bandwidth with noise, at sizes a random factor apart; now and then a size twice, or one a few bytes from another.
AllReduceTable noisy_table(uint64_t seed, const std::vector<int64_t>& worlds) {
  std::mt19937_64 random(seed);
  const auto uniform = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  AllReduceTable table;
  for (const int64_t world : worlds) {
    const double latency_s = std::pow(10, uniform(-5, -3)), s_per_byte = std::pow(10, uniform(-10, -8));
    for (double bytes = 4; bytes < 1e8; bytes *= uniform(1.5, 6)) {
      const auto row = [&](double size) {
        const double seconds = (latency_s + s_per_byte * size) * uniform(0.9, 1.1);
        table.push_back(
            {.bytes = 4 * std::llround(size / 4), .world_size = world, .median_s = seconds, .gap_s = seconds * uniform(0.3, 1.2)});
      };
      row(bytes);
      if (uniform(0, 1) < 0.2) row(bytes);
      if (uniform(0, 1) < 0.2) row(bytes + 4);
    }
  }
  return table;
}

TEST(LegalTables, TwoSizesOfNearlyTheSameBytesAreOneMeasurement) {
  const CostCurve curve({{1 << 20, 2e-3}, {16777216, 30e-3}, {16777220, 31e-3}});
  EXPECT_NEAR(curve(kMany), 61e-3, 5e-3);
  EXPECT_NEAR(curve(16777218), 30.5e-3, 1e-3);
}

TEST(LegalTables, NoSlopeBeyondTheLargestSizeIsManyTimesWhatItsBytesTake) {
  // The last but one was lucky: 8 MiB in the time of 5.
  const CostCurve curve({{4 << 20, 40e-3}, {8 << 20, 50e-3}, {9 << 20, 90e-3}});
  EXPECT_LT(curve(90 << 20), 20 * 90e-3);
}

TEST(LegalTables, OneMoreByteChangesLittle) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const CommCosts costs = comm_costs(noisy_table(seed, {8}), 8);
    for (double bytes = 4; bytes < 1e9; bytes *= 1.37) {
      for (const CostCurve* curve : {&costs.isolated, &costs.gap}) {
        EXPECT_NEAR((*curve)(bytes * 1.001) / (*curve)(bytes), 1, 0.1) << "seed " << seed << ", " << bytes << " bytes";
      }
    }
  }
}

TEST(LegalTables, OneMoreRowChangesNoTimeByMoreThanItsNoise) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    AllReduceTable table = noisy_table(seed, {8});
    const CommCosts before = comm_costs(table, 8);
    AllReduceRow again = table[table.size() - 2];
    again.bytes += 4;
    table.push_back(again);
    const CommCosts after = comm_costs(table, 8);
    for (double bytes = 4; bytes < 1e9; bytes *= 1.37) {
      const double ratio = after.isolated(bytes) / before.isolated(bytes);
      EXPECT_TRUE(ratio > 0.5 && ratio < 2) << "seed " << seed << ", " << bytes << " bytes: " << ratio;
    }
  }
}

TEST(LegalTables, TheOrderOfRowsMeansNothing) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AllReduceTable table = noisy_table(seed, {4, 8, 16});
    const CommCosts before = grown_costs(table, 64).likely;
    std::shuffle(table.begin(), table.end(), std::mt19937_64(seed));
    const CommCosts after = grown_costs(table, 64).likely;
    for (const double bytes : {4.0, 1e4, 1e6, 1e8}) {
      EXPECT_NEAR(after.isolated(bytes) / before.isolated(bytes), 1, 1e-9) << "seed " << seed;
      EXPECT_NEAR(after.gap(bytes) / before.gap(bytes), 1, 1e-9) << "seed " << seed;
    }
  }
}

TEST(LegalTables, OneMoreRankIsNoOtherNetwork) {
  // Gaps that the curves of a measured world do not believe (they are clamped there), the extrapolation must not believe either.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    AllReduceTable table = noisy_table(seed, {4, 8, 16});
    for (AllReduceRow& row : table) row.gap_s = row.median_s * 4;
    const CommCosts measured = comm_costs(table, 16), one_more = grown_costs(table, 17).likely;
    for (const double bytes : {4e4, 1e6, 1e8}) {
      const double gap = one_more.gap(bytes) / measured.gap(bytes), alone = one_more.isolated(bytes) / measured.isolated(bytes);
      EXPECT_NEAR(gap / alone, 1, 0.6) << "seed " << seed << ", " << bytes << " bytes";
    }
  }
}

TEST(LegalTables, SayWhatTheyCannotTell) {
  const AllReduceRow small{.bytes = 1024, .world_size = 8, .median_s = 20e-6}, large{.bytes = kMany, .world_size = 8, .median_s = 3e-3};
  const auto only_doubt = [](const AllReduceTable& table) { return doubts_about(table).at(0); };
  EXPECT_TRUE(doubts_about(AllReduceTable{small, large}).empty());
  EXPECT_EQ(std::get<SingleSize>(only_doubt({large})).bytes, kMany);
  const AllReduceRow larger{.bytes = 2 * kMany, .world_size = 8, .median_s = 6e-3};
  EXPECT_EQ(std::get<NoSmallSize>(only_doubt({large, larger})).smallest_bytes, kMany);
  for (const double seconds : {3000.0, 3e-6}) {
    const AllReduceRow implausible{.bytes = kMany, .world_size = 8, .median_s = seconds};
    EXPECT_EQ(std::get<ImplausibleTime>(only_doubt({small, implausible})).seconds, seconds);
  }
}

TEST(LegalTables, ReadyTimesInMillisecondsAreNoticed) {
  const TensorProfile seconds = make_profile({1 << 20, 1 << 20}, {0.05, 0.1});
  EXPECT_TRUE(doubts_about(seconds).empty());
  const TensorProfile milliseconds = make_profile({1 << 20, 1 << 20}, {500, 1000});
  ASSERT_EQ(doubts_about(milliseconds).size(), 1u);
  EXPECT_EQ(std::get<ImplausibleBackward>(doubts_about(milliseconds)[0]).seconds, 1000);
}

}  // namespace
}  // namespace firkin
