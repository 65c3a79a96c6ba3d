#include "firkin/stats/indifference.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>

#include "firkin/stats/block_fit.h"
#include "firkin/stats/summary.h"
#include "series.h"

namespace firkin {

namespace {

constexpr double kOneSided = 0.975;  // so that two equal settings, of which either may come out ahead, are told apart in 5 %
constexpr int kShuffles = 1000;

// What is left of the logarithms of each setting's times, [block][setting]; block effects stay in, for they cancel within a block.
std::vector<std::vector<double>> residuals_by_block(const std::vector<std::vector<double>>& settings_by_block,
                                                    std::span<const SettingFit> fit) {
  const auto blocks = static_cast<double>(settings_by_block.front().size());
  const double fitted = std::sqrt(blocks / (blocks - 1));  // the medians have come closer to the samples than the truth is
  std::vector<std::vector<double>> residuals(settings_by_block.front().size());
  for (size_t s = 0; s < fit.size(); ++s) {
    for (size_t b = 0; b < residuals.size(); ++b) residuals[b].push_back(fitted * std::log(settings_by_block[s][b] / fit[s].median));
  }
  return residuals;
}

// How far above the luckiest of equal settings one of them lies at most, in 97.5 % of measurements with this noise. Natural logarithm.
double luck(std::vector<std::vector<double>> residuals) {
  const size_t settings = residuals.front().size();
  std::mt19937_64 random(0);
  std::vector<double> distances;
  for (int shuffle = 0; shuffle < kShuffles; ++shuffle) {
    // Fisher and Yates, alike on every standard library (std::shuffle is not).
    for (std::vector<double>& block : residuals) {
      for (size_t i = settings; i > 1; --i) std::swap(block[i - 1], block[static_cast<size_t>(((random() >> 32) * i) >> 32)]);
    }
    double farthest = 0;
    for (size_t other = 1; other < settings; ++other) {
      std::vector<double> differences;
      for (const std::vector<double>& block : residuals) differences.push_back(block[0] - block[other]);
      farthest = std::max(farthest, median(pairwise_means(differences)));
    }
    distances.push_back(farthest);
  }
  return quantile(distances, kOneSided);
}

}  // namespace

IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, std::span<const SettingFit> fit) {
  const BlockFit alone = fit.empty() ? fit_blocks(settings_by_block) : BlockFit();
  if (fit.empty()) fit = alone;
  IndifferenceSet set;
  set.best = static_cast<size_t>(std::ranges::min_element(fit, {}, &SettingFit::median) - fit.begin());
  const bool enough = settings_by_block.front().size() >= kFewestSamples;
  const double by_luck = enough ? luck(residuals_by_block(settings_by_block, fit)) : std::numeric_limits<double>::infinity();
  for (size_t setting = 0; setting < fit.size(); ++setting) {
    PairedRatio ratio = paired_ratio(settings_by_block[setting], settings_by_block[set.best]);
    if (setting != set.best) {
      ratio.interval.low = std::min(ratio.interval.low, ratio.ratio * std::exp(-by_luck));
      ratio.interval.high = std::max(ratio.interval.high, ratio.ratio * std::exp(by_luck));
    }
    if (setting == set.best || ratio.interval.low <= 1) set.members.push_back(setting);
    set.to_best.push_back(ratio);
  }
  return set;
}

}  // namespace firkin
