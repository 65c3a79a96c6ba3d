#include "firkin/stats/block_fit.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "firkin/stats/summary.h"

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

// Over the settings, but for `left_out`: how much longer block `block` takes them than a typical one.
double block_effect(const Matrix& logs, const std::vector<double>& effects, size_t block, size_t left_out) {
  std::vector<double> residuals;
  for (size_t setting = 0; setting < logs.size(); ++setting) {
    if (setting != left_out) residuals.push_back(logs[setting][block] - effects[setting]);
  }
  return residuals.empty() ? 0 : median(residuals);
}

// Tukey's median polish: each setting's effect. What is added to all of them is free; it is chosen so that half of all samples lie below
// their setting's effect, which makes the effect of settings that are alike the median of all their samples.
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

// A setting's samples in a typical block, as all settings or those but one (`left_out`) see it.
std::vector<double> polished(const Matrix& logs, const std::vector<double>& effects, size_t setting, size_t left_out) {
  std::vector<double> samples;
  for (size_t b = 0; b < logs[setting].size(); ++b)
    samples.push_back(std::exp(logs[setting][b] - block_effect(logs, effects, b, left_out)));
  return samples;
}

double width(const Interval& interval) {
  return interval.high - interval.low;
}

// The widest that the interval of a setting may be: as wide as the range of its samples, and kWidest times as wide as if blocks were known
// from all settings. Of three or five settings that says little: the one in the middle of a block seems to have no noise there.
double widest(const std::vector<double>& samples, const Matrix& logs, const std::vector<double>& effects, size_t setting,
              double confidence) {
  constexpr double kWidest = 1.4;
  const auto [shortest, longest] = std::ranges::minmax(samples);
  const double range = longest - shortest;
  if (logs.size() == 1 || logs.size() == 3 || logs.size() == 5) return range;
  return std::min(range, kWidest * width(median_interval(polished(logs, effects, setting, logs.size()), confidence)));
}

}  // namespace

BlockFit fit_blocks(const Matrix& settings_by_block, double confidence) {
  const Matrix logs = logarithms(settings_by_block);
  const std::vector<double> effects = polish(logs);
  BlockFit fit;
  for (size_t s = 0; s < logs.size(); ++s) {
    SettingFit& setting = fit.emplace_back();
    // What the others say of a block does not hold the setting's own noise, which would seem less than it is.
    setting.polished = polished(logs, effects, s, s);
    setting.median = median(setting.polished);
    setting.outliers = find_outliers(setting.polished);
    setting.modes = find_two_modes(setting.polished);
    const std::vector<double>& samples = settings_by_block[s];
    setting.interval = logs.size() == 1 ? series_interval(samples, confidence) : median_interval(setting.polished, confidence);
    if (!std::isfinite(setting.interval.high)) continue;
    const double part = std::min(1.0, widest(samples, logs, effects, s, confidence) / std::max(width(setting.interval), 1e-300));
    setting.interval = {std::lerp(setting.median, setting.interval.low, part), std::lerp(setting.median, setting.interval.high, part)};
  }
  return fit;
}

}  // namespace firkin
