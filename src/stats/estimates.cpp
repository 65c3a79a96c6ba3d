#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>

#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

void require_finite_sample(std::span<const double> values) {
  if (values.empty()) throw std::invalid_argument("statistics of no values");
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); })) {
    throw std::invalid_argument("statistics of a value that is not finite");
  }
}

constexpr double kConfidence = 0.95;
constexpr size_t kMostStretches = 32;  // longer series are condensed to this many medians
constexpr size_t kMostBlocks = 100;    // more pairs are condensed to this many medians
constexpr double kLargestCorrelation = 0.9;

// Divides the series into at most `most` stretches, equally long except the last, and returns the median of each. A
// series of at most `most` values is returned unchanged.
std::vector<double> medians_of_stretches(std::span<const double> series, size_t most) {
  const size_t length = (series.size() + most - 1) / most;
  std::vector<double> medians;
  for (size_t first = 0; first < series.size(); first += length) {
    medians.push_back(median(series.subspan(first, std::min(length, series.size() - first))));
  }
  return medians;
}

// How deep in n sorted samples, from either side, the interval's ends lie: 1 is the outermost sample, 2.5 half way
// between the second and the third. 0 if even the whole range is too narrow.
double depth_of(size_t n) {
  const auto count = static_cast<double>(n);
  double outside = 0;  // probability that at most d - 1 of n are on one side of the median
  double reached = 1;  // confidence at depth 0
  double depth = 0;
  for (size_t d = 1; 2 * d <= n + 1; ++d) {
    const auto k = static_cast<double>(d - 1);
    outside += std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1) - count * std::numbers::ln2);
    const double here = 1 - 2 * outside;
    if (here < kConfidence) {
      if (depth == 0) return 0;
      const double part = (reached - kConfidence) / (reached - here);
      return depth + (count - depth) * part / (depth + (count - 2 * depth) * part);
    }
    reached = here;
    depth = static_cast<double>(d);
  }
  return depth;
}

// The interval whose ends lie at `depth`, from 1 to (n + 1) / 2.
Interval at_depth(std::vector<double> values, double depth) {
  std::ranges::sort(values);
  const auto rank = static_cast<size_t>(depth) - 1;
  const double part = depth - std::floor(depth);
  const size_t next = std::min(rank + 1, values.size() - 1);
  const size_t last = values.size() - 1;
  return {std::lerp(values[rank], values[next], part), std::lerp(values[last - rank], values[last - next], part)};
}

Interval unbounded(std::span<const double> samples) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {std::ranges::all_of(samples, [](double sample) { return sample > 0; }) ? 0 : -kInfinity, kInfinity};
}

// The correlation between the ranks of neighbours, corrected for the bias of short series (Kendall 1954); from 0 to
// kLargestCorrelation.
double neighbour_correlation(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  std::vector<double> ranks;  // relative to the middle one; equal values share their mean rank
  for (const double value : values) {
    const auto below = std::ranges::count_if(values, [value](double other) { return other < value; });
    const auto above = std::ranges::count_if(values, [value](double other) { return other > value; });
    ranks.push_back(0.5 * static_cast<double>(below - above));
  }
  const double squares = std::inner_product(ranks.begin(), ranks.end(), ranks.begin(), 0.0);
  if (squares == 0) return 0;
  const double products = std::inner_product(ranks.begin() + 1, ranks.end(), ranks.begin(), 0.0);
  return std::clamp((n * products / squares + 1) / (n - 3), 0.0, kLargestCorrelation);
}

// The means of all pairs, each value with itself included; their median is the Hodges-Lehmann estimate (1963).
std::vector<double> pairwise_means(std::span<const double> values) {
  std::vector<double> means;
  means.reserve(values.size() * (values.size() + 1) / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) means.push_back(0.5 * (values[i] + values[j]));
  }
  return means;
}

// How many of the outermost pairwise means of n differences lie outside the interval on each side; 0 if even their
// whole range is too narrow.
size_t means_outside(size_t n, double confidence) {
  // probability[t]: that the ranks of the positive differences add up to t, if each sign is a coin toss.
  std::vector<double> probability(n * (n + 1) / 2 + 1, 0);
  probability[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank) {
    for (size_t t = probability.size(); t-- > 0;) probability[t] = 0.5 * (probability[t] + (t >= rank ? probability[t - rank] : 0));
  }
  size_t outside = 0;
  for (double below = probability[0]; below <= (1 - confidence) / 2; below += probability[outside]) ++outside;
  return outside;
}

}  // namespace

double median(std::span<const double> values) {
  return quantile(values, 0.5);
}

double quantile(std::span<const double> values, double q) {
  require_finite_sample(values);
  if (!(q >= 0 && q <= 1)) throw std::invalid_argument("a quantile outside 0 to 1");
  std::vector<double> reordered(values.begin(), values.end());
  const double rank = q * static_cast<double>(values.size() - 1);
  const double fraction = rank - std::floor(rank);
  const auto at = reordered.begin() + static_cast<std::ptrdiff_t>(rank);
  std::ranges::nth_element(reordered, at);
  return fraction == 0 ? *at : std::lerp(*at, *std::min_element(at + 1, reordered.end()), fraction);
}

std::vector<double> column_medians(const std::vector<std::vector<double>>& rows) {
  std::vector<double> medians, column(rows.size());
  for (size_t i = 0; i < rows[0].size(); ++i) {
    std::ranges::transform(rows, column.begin(), [i](const auto& row) { return row[i]; });
    medians.push_back(median(column));
  }
  return medians;
}

double mean(std::span<const double> values) {
  require_finite_sample(values);
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double stdev(std::span<const double> values) {
  const double centre = mean(values);
  if (values.size() == 1) return 0;
  double squares = 0;
  for (const double value : values) squares += (value - centre) * (value - centre);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

Summary summarize(std::span<const double> values) {
  const auto [min, max] = std::ranges::minmax_element(values);
  return {.median = median(values),
          .mean = mean(values),
          .stdev = stdev(values),
          .min = *min,
          .max = *max,
          .p99 = quantile(values, 0.99),
          .count = static_cast<int64_t>(values.size())};
}

Interval median_interval(std::span<const double> samples) {
  require_finite_sample(samples);
  const double depth = depth_of(samples.size());
  return depth == 0 ? unbounded(samples) : at_depth({samples.begin(), samples.end()}, depth);
}

Interval series_interval(std::span<const double> samples) {
  require_finite_sample(samples);
  if (depth_of(samples.size()) == 0) return unbounded(samples);
  const std::vector<double> values = medians_of_stretches(samples, kMostStretches);
  const auto n = static_cast<double>(values.size());
  const double correlation = neighbour_correlation(values);
  const auto fewer = static_cast<size_t>(std::lround(n * (1 - correlation) / (1 + correlation)));
  // Leave the same fraction of samples outside as with `fewer` independent samples.
  const double depth = (depth_of(fewer) - 0.5) * n / static_cast<double>(std::max<size_t>(fewer, 1)) + 0.5;
  const Interval interval = at_depth(values, std::max(1.0, depth));
  const double middle = median(samples);
  return {std::min(interval.low, middle), std::max(interval.high, middle)};
}

std::optional<double> series_error(std::span<const double> samples) {
  if (samples.size() < kFewestSamples) return std::nullopt;
  const Interval interval = series_interval(samples);
  return (interval.high - interval.low) / (2 * kNormal95);
}

PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, double confidence) {
  if (a.size() != reference.size()) throw std::invalid_argument("a paired ratio of samples from different numbers of blocks");
  if (a.empty()) throw std::invalid_argument("a paired ratio of no blocks");
  std::vector<double> differences;
  for (size_t block = 0; block < a.size(); ++block) {
    differences.push_back(std::log(a[block]) - std::log(reference[block]));
    if (!std::isfinite(differences.back())) throw std::invalid_argument("a paired ratio of a value that is not positive and finite");
  }
  differences = medians_of_stretches(differences, kMostBlocks);
  std::vector<double> means = pairwise_means(differences);
  std::ranges::sort(means);
  const size_t outside = means_outside(differences.size(), confidence);
  const double middle = std::exp(median(means));
  if (outside == 0) return {middle, {0, std::numeric_limits<double>::infinity()}};
  return {middle, {std::exp(means[outside - 1]), std::exp(means[means.size() - outside])}};
}

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

// Tukey's median polish: each setting's effect. Their common constant is chosen so that half of all samples lie below
// their setting's effect; if all settings are alike, the effect is the median of all samples.
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

// A setting's samples in a typical block. Block effects come from all settings except `left_out`.
std::vector<double> polished(const Matrix& logs, const std::vector<double>& effects, size_t setting, size_t left_out) {
  std::vector<double> samples;
  for (size_t b = 0; b < logs[setting].size(); ++b)
    samples.push_back(std::exp(logs[setting][b] - block_effect(logs, effects, b, left_out)));
  return samples;
}

double width(const Interval& interval) {
  return interval.high - interval.low;
}

// The widest a setting's interval may be: the range of its samples, and kWidest times its width with block effects from
// all settings. With three or five settings the latter says little: the middle setting of a block seems to have no
// noise.
double widest(const std::vector<double>& samples, const Matrix& logs, const std::vector<double>& effects, size_t setting) {
  constexpr double kWidest = 1.4;
  const auto [shortest, longest] = std::ranges::minmax(samples);
  const double range = longest - shortest;
  if (logs.size() == 1 || logs.size() == 3 || logs.size() == 5) return range;
  return std::min(range, kWidest * width(median_interval(polished(logs, effects, setting, logs.size()))));
}

// Two equal settings, either of which may come out ahead, are then told apart by mistake in 5 % of cases.
constexpr double kOneSided = 0.975;
constexpr int kShuffles = 1000;

// The residuals of each setting's log times, [block][setting]. Block effects stay in: they cancel within a block.
Matrix residuals_by_block(const Matrix& settings_by_block, const BlockFit& fit) {
  const auto blocks = static_cast<double>(settings_by_block.front().size());
  // The fitted medians lie closer to the samples than the true ones.
  const double fitted = std::sqrt(blocks / (blocks - 1));
  Matrix residuals(settings_by_block.front().size());
  for (size_t s = 0; s < fit.size(); ++s) {
    for (size_t b = 0; b < residuals.size(); ++b) residuals[b].push_back(fitted * std::log(settings_by_block[s][b] / fit[s].median));
  }
  return residuals;
}

// The distance (a natural logarithm) within which equal settings lie above the luckiest, in 97.5 % of measurements.
double luck(Matrix residuals) {
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

BlockFit fit_blocks(const Matrix& settings_by_block) {
  const Matrix logs = logarithms(settings_by_block);
  const std::vector<double> effects = polish(logs);
  BlockFit fit;
  for (size_t s = 0; s < logs.size(); ++s) {
    SettingFit& setting = fit.emplace_back();
    // Block effects leave out the setting itself, which would make its noise look smaller than it is.
    const std::vector<double> in_typical_block = polished(logs, effects, s, s);
    setting.median = median(in_typical_block);
    const std::vector<double>& samples = settings_by_block[s];
    setting.interval = logs.size() == 1 ? series_interval(samples) : median_interval(in_typical_block);
    if (!std::isfinite(setting.interval.high)) continue;
    const double part = std::min(1.0, widest(samples, logs, effects, s) / std::max(width(setting.interval), 1e-300));
    setting.interval = {std::lerp(setting.median, setting.interval.low, part), std::lerp(setting.median, setting.interval.high, part)};
  }
  return fit;
}

IndifferenceSet indifference_set(const Matrix& settings_by_block) {
  const BlockFit fit = fit_blocks(settings_by_block);
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
