#include "firkin/stats/indifference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "firkin/stats/summary.h"

namespace firkin {

namespace {

constexpr double kFalseDifferences = 0.05;  // the rate that the whole set is held to
constexpr int kResamplesPerSetting = 1000;  // so that 50 resamples lie outside the interval, however high its confidence

void require_complete_blocks(const std::vector<std::vector<double>>& settings_by_block) {
  if (settings_by_block.empty()) throw std::invalid_argument("an indifference set of no settings");
  for (const auto& setting : settings_by_block) {
    if (setting.size() != settings_by_block.front().size()) throw std::invalid_argument("a setting lacks a block that another has");
    if (setting.empty()) throw std::invalid_argument("a setting without blocks");
    if (!std::ranges::all_of(setting, [](double seconds) { return seconds > 0 && std::isfinite(seconds); })) {
      throw std::invalid_argument("a block's time is not positive and finite");
    }
  }
}

// Per block, the mean over the settings of the logarithm of their times.
std::vector<double> log_geometric_means(const std::vector<std::vector<double>>& settings_by_block) {
  std::vector<double> means(settings_by_block.front().size(), 0.0);
  for (const auto& setting : settings_by_block) {
    for (size_t block = 0; block < means.size(); ++block) {
      means[block] += std::log(setting[block]) / static_cast<double>(settings_by_block.size());
    }
  }
  return means;
}

size_t find_best(const std::vector<std::vector<double>>& settings_by_block) {
  const std::vector<double> reference = log_geometric_means(settings_by_block);
  std::vector<double> medians;
  for (const auto& setting : settings_by_block) {
    std::vector<double> log_ratios;
    for (size_t block = 0; block < setting.size(); ++block) log_ratios.push_back(std::log(setting[block]) - reference[block]);
    medians.push_back(median(log_ratios));
  }
  return static_cast<size_t>(std::ranges::min_element(medians) - medians.begin());
}

}  // namespace

IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, uint64_t seed) {
  require_complete_blocks(settings_by_block);
  const auto settings = static_cast<int>(settings_by_block.size());
  const double confidence = 1 - kFalseDifferences / settings;

  IndifferenceSet set{.best = find_best(settings_by_block), .members = {}, .to_best = {}};
  const std::vector<double>& best = settings_by_block[set.best];
  for (size_t setting = 0; setting < settings_by_block.size(); ++setting) {
    set.to_best.push_back(paired_ratio(settings_by_block[setting], best, seed, confidence, kResamplesPerSetting * settings));
    if (setting == set.best || set.to_best.back().interval.low <= 1) set.members.push_back(setting);
  }
  return set;
}

}  // namespace firkin
