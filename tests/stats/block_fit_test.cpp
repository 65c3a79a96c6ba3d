// What a setting takes, once the blocks are taken out.

#include "../test.h"
#include "firkin/stats/estimates.h"
#include "synthetic_noise.h"

namespace firkin {
namespace {

// Blocks of which some are up to three times as slow, for all settings alike.
std::vector<std::vector<double>> measure_under_load(SyntheticNoise& noise, const std::vector<double>& true_s, size_t blocks, double stdev) {
  std::vector<double> machine = noise.series(blocks, 0.6);
  std::vector<std::vector<double>> measured(true_s.size());
  for (size_t s = 0; s < true_s.size(); ++s) {
    for (size_t b = 0; b < blocks; ++b) measured[s].push_back(true_s[s] * std::exp(0.5 * machine[b] + stdev * noise.normal()));
  }
  return measured;
}

TEST(BlockFit, RecoversSettingsThatDifferByAFactorWhateverTheBlocksAreLike) {
  const std::vector<double> machine = {1, 3, 1.5, 2, 9, 1.2, 2.2};
  std::vector<std::vector<double>> measured(3);
  for (const double factor : machine) {
    measured[0].push_back(0.1 * factor);
    measured[1].push_back(0.2 * factor);
    measured[2].push_back(0.15 * factor);
  }
  const BlockFit fit = fit_blocks(measured);
  EXPECT_NEAR(fit[0].median, 0.2, 1e-12);  // in the block of median speed, 2
  EXPECT_NEAR(fit[1].median, 0.4, 1e-12);
  EXPECT_NEAR(fit[2].median, 0.3, 1e-12);
  EXPECT_NEAR(fit[1].interval.low, 0.4, 1e-12);
  EXPECT_NEAR(fit[1].interval.high, 0.4, 1e-12);
}

TEST(BlockFit, GivesIntervalsOfTheSettingsOwnNoiseAndNotOfTheMachines) {
  SyntheticNoise noise(1);
  const auto measured = measure_under_load(noise, std::vector<double>(8, 0.1), 16, 0.05);
  for (const SettingFit& setting : fit_blocks(measured)) {
    EXPECT_LT(setting.interval.high / setting.interval.low, 1.15);
  }
  EXPECT_GT(series_interval(measured[0]).high / series_interval(measured[0]).low, 1.5);
}

TEST(BlockFit, HoldsTheMedianOfAllSamplesWhereAllSettingsAreEqual) {
  SyntheticNoise noise(2);
  int held = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    const auto measured = measure_under_load(noise, std::vector<double>(8, 0.1), 20, 0.05);
    std::vector<double> all;
    for (const auto& setting : measured) all.insert(all.end(), setting.begin(), setting.end());
    held += fit_blocks(measured)[static_cast<size_t>(trial) % 8].interval.contains(median(all)) ? 1 : 0;
  }
  EXPECT_GE(held, 920);
  EXPECT_LE(held, 980);
}

TEST(BlockFit, OfOneSettingIsItsSeries) {
  const std::vector<double> samples = {3, 1, 2, 5, 4, 6, 9};
  const BlockFit fit = fit_blocks({samples});
  EXPECT_NEAR(fit[0].median, 4, 1e-12);
  EXPECT_EQ(fit[0].interval.low, series_interval(samples).low);
  EXPECT_EQ(fit[0].interval.high, series_interval(samples).high);
}

TEST(BlockFit, IsNeverWiderThanTheRangeOfTheSamples) {
  SyntheticNoise noise(5);
  for (int trial = 0; trial < 200; ++trial) {
    // Of noise that the settings do not share, polishing adds to each what the others have.
    std::vector<std::vector<double>> measured(2 + static_cast<size_t>(trial) % 3);
    for (std::vector<double>& setting : measured) {
      for (const double value : noise.series(6, 0)) setting.push_back(std::exp(value));
    }
    const BlockFit fit = fit_blocks(measured);
    for (size_t s = 0; s < measured.size(); ++s) {
      const auto [shortest, longest] = std::ranges::minmax(measured[s]);
      EXPECT_LE(fit[s].interval.high - fit[s].interval.low, (longest - shortest) * (1 + 1e-9));
      EXPECT_TRUE(fit[s].interval.contains(fit[s].median));
    }
  }
}

TEST(BlockFit, OfFiveBlocksHasNoInterval) {
  const BlockFit fit = fit_blocks({{1, 2, 3, 4, 5}, {2, 3, 4, 5, 6}});
  EXPECT_EQ(fit[0].interval.high, std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace firkin
