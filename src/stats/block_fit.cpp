#include "firkin/stats/block_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <utility>

#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using Matrix = std::vector<std::vector<double>>;

Matrix logarithms(const Matrix& settings_by_block) {
  if (settings_by_block.empty()) throw std::invalid_argument("a block fit of no settings");
  Matrix logs = settings_by_block;
  for (std::vector<double>& setting : logs) {
    if (setting.size() != logs.front().size()) throw std::invalid_argument("a setting lacks a block that another has");
    if (setting.empty()) throw std::invalid_argument("a setting without blocks");
    for (double& time : setting) {
      if (!(time > 0 && std::isfinite(time))) throw std::invalid_argument("a block's time is not positive and finite");
      time = std::log(time);
    }
  }
  return logs;
}

// How much longer `block` takes than a typical block, in logarithms: the median over all settings except `left_out`.
double block_effect(const Matrix& logs, const std::vector<double>& effects, size_t block, size_t left_out) {
  std::vector<double> residuals;
  for (size_t setting = 0; setting < logs.size(); ++setting) {
    if (setting != left_out) residuals.push_back(logs[setting][block] - effects[setting]);
  }
  return residuals.empty() ? 0 : median(residuals);
}

// Tukey's median polish: each setting's effect. The effects are only determined up to a common constant. It is chosen
// so that half of all samples lie below their setting's effect: if all settings are alike, the effect is the median of
// all samples.
std::vector<double> polish(const Matrix& logs) {
  constexpr int kSweeps = 20;
  constexpr double kSettled = 1e-9;
  std::vector<double> effects;
  for (const std::vector<double>& setting : logs) effects.push_back(median(setting));
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    std::vector<double> blocks;
    for (size_t b = 0; b < logs.front().size(); ++b) blocks.push_back(block_effect(logs, effects, b, logs.size()));
    const double typical = median(blocks);
    double moved = 0;
    for (size_t s = 0; s < logs.size(); ++s) {
      std::vector<double> residuals;
      for (size_t b = 0; b < blocks.size(); ++b) residuals.push_back(logs[s][b] - (blocks[b] - typical));
      const double effect = median(residuals);
      moved = std::max(moved, std::abs(effect - effects[s]));
      effects[s] = effect;
    }
    if (moved < kSettled) break;
  }
  std::vector<double> residuals;
  for (size_t s = 0; s < logs.size(); ++s) {
    for (const double sample : logs[s]) residuals.push_back(sample - effects[s]);
  }
  const double typical = median(residuals);
  for (double& effect : effects) effect += typical;
  return effects;
}

// A setting's samples as they would be in a typical block. Block effects come from all settings except `left_out`.
std::vector<double> polished(const Matrix& logs, const std::vector<double>& effects, size_t setting, size_t left_out) {
  std::vector<double> samples;
  for (size_t b = 0; b < logs[setting].size(); ++b)
    samples.push_back(std::exp(logs[setting][b] - block_effect(logs, effects, b, left_out)));
  return samples;
}

double width(const Interval& interval) {
  return interval.high - interval.low;
}

// The widest that a setting's interval may be: as wide as the range of its samples, and kWidest times as wide as with
// block effects from all settings. With three or five settings the latter says little: the setting in the middle of a
// block seems to have no noise there.
double widest(const std::vector<double>& samples, const Matrix& logs, const std::vector<double>& effects, size_t setting,
              double confidence) {
  constexpr double kWidest = 1.4;
  const auto [shortest, longest] = std::ranges::minmax(samples);
  const double range = longest - shortest;
  if (logs.size() == 1 || logs.size() == 3 || logs.size() == 5) return range;
  return std::min(range, kWidest * width(median_interval(polished(logs, effects, setting, logs.size()), confidence)));
}

// Two equal settings, either of which may come out ahead, are then told apart by mistake in 5 % of cases.
constexpr double kOneSided = 0.975;
constexpr int kShuffles = 1000;

// What is left of the logarithms of each setting's times, [block][setting]. Block effects stay in: they cancel within a
// block.
std::vector<std::vector<double>> residuals_by_block(const std::vector<std::vector<double>>& settings_by_block,
                                                    std::span<const SettingFit> fit) {
  const auto blocks = static_cast<double>(settings_by_block.front().size());
  // The fitted medians lie closer to the samples than the true ones.
  const double fitted = std::sqrt(blocks / (blocks - 1));
  std::vector<std::vector<double>> residuals(settings_by_block.front().size());
  for (size_t s = 0; s < fit.size(); ++s) {
    for (size_t b = 0; b < residuals.size(); ++b) residuals[b].push_back(fitted * std::log(settings_by_block[s][b] / fit[s].median));
  }
  return residuals;
}

// How far above the luckiest of equal settings another one lies at most, in 97.5 % of measurements with this noise; a
// natural logarithm.
double luck(std::vector<std::vector<double>> residuals) {
  const size_t settings = residuals.front().size();
  std::mt19937_64 random(0);
  std::vector<double> distances;
  for (int shuffle = 0; shuffle < kShuffles; ++shuffle) {
    // Fisher-Yates, written out because std::shuffle() differs between standard libraries.
    for (std::vector<double>& block : residuals) {
      for (size_t i = settings; i > 1; --i) std::swap(block[i - 1], block[static_cast<size_t>(((random() >> 32) * i) >> 32)]);
    }
    double farthest = 0;
    for (size_t other = 1; other < settings; ++other) {
      std::vector<double> differences;
      for (const std::vector<double>& block : residuals) differences.push_back(block[0] - block[other]);
      farthest = std::max(farthest, median(pairwise_means(medians_of_stretches(differences, kMostBlocks))));
    }
    distances.push_back(farthest);
  }
  return quantile(distances, kOneSided);
}

}  // namespace

BlockFit fit_blocks(const Matrix& settings_by_block, double confidence) {
  const Matrix logs = logarithms(settings_by_block);
  const std::vector<double> effects = polish(logs);
  BlockFit fit;
  for (size_t s = 0; s < logs.size(); ++s) {
    SettingFit& setting = fit.emplace_back();
    // Only the other settings tell what a block is like: with the setting itself included, its noise would look smaller
    // than it is.
    setting.polished = polished(logs, effects, s, s);
    setting.median = median(setting.polished);
    const std::vector<double>& samples = settings_by_block[s];
    setting.interval = logs.size() == 1 ? series_interval(samples, confidence) : median_interval(setting.polished, confidence);
    if (!std::isfinite(setting.interval.high)) continue;
    const double part = std::min(1.0, widest(samples, logs, effects, s, confidence) / std::max(width(setting.interval), 1e-300));
    setting.interval = {std::lerp(setting.median, setting.interval.low, part), std::lerp(setting.median, setting.interval.high, part)};
  }
  return fit;
}

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
