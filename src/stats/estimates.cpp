#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <vector>

#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

void require_finite_sample(std::span<const double> values) {
  if (values.empty()) throw std::invalid_argument("statistics of no values");
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); })) {
    throw std::invalid_argument("statistics of a value that is not finite");
  }
}

constexpr size_t kMostStretches = 32;
constexpr double kLargestCorrelation = 0.9;

void require_samples(std::span<const double> samples, double confidence) {
  if (samples.empty()) throw std::invalid_argument("an interval from no samples");
  if (!std::ranges::all_of(samples, [](double sample) { return std::isfinite(sample); })) {
    throw std::invalid_argument("an interval from a sample that is not finite");
  }
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
}

// How deep in n sorted samples, from either side, the ends of the interval lie: 1 is the outermost sample, 2.5 half way
// between the second and the third. 0 if even the whole range does not reach the confidence.
double depth_of(size_t n, double confidence) {
  const auto count = static_cast<double>(n);
  double outside = 0;  // probability that at most d - 1 of n are on one side of the median
  double reached = 1;  // confidence at depth 0
  double depth = 0;
  for (size_t d = 1; 2 * d <= n + 1; ++d) {
    const auto k = static_cast<double>(d - 1);
    outside += std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1) - count * std::numbers::ln2);
    const double here = 1 - 2 * outside;
    if (here < confidence) {
      if (depth == 0) return 0;
      const double part = (reached - confidence) / (reached - here);
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

// How many of the outermost pairwise means of n differences lie outside the interval on each side. 0 if even their
// whole range does not reach the confidence.
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

std::vector<double> medians_of_stretches(std::span<const double> series, size_t most) {
  const size_t length = (series.size() + most - 1) / most;
  std::vector<double> medians;
  for (size_t first = 0; first < series.size(); first += length) {
    medians.push_back(median(series.subspan(first, std::min(length, series.size() - first))));
  }
  return medians;
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

Interval median_interval(std::span<const double> samples, double confidence) {
  require_samples(samples, confidence);
  const double depth = depth_of(samples.size(), confidence);
  return depth == 0 ? unbounded(samples) : at_depth({samples.begin(), samples.end()}, depth);
}

Interval series_interval(std::span<const double> samples, double confidence) {
  require_samples(samples, confidence);
  if (depth_of(samples.size(), confidence) == 0) return unbounded(samples);
  const std::vector<double> values = medians_of_stretches(samples, kMostStretches);
  const auto n = static_cast<double>(values.size());
  const double correlation = neighbour_correlation(values);
  const auto fewer = static_cast<size_t>(std::lround(n * (1 - correlation) / (1 + correlation)));
  // Leave the same fraction of samples outside as with `fewer` independent samples.
  const double depth = (depth_of(fewer, confidence) - 0.5) * n / static_cast<double>(std::max<size_t>(fewer, 1)) + 0.5;
  const Interval interval = at_depth(values, std::max(1.0, depth));
  const double middle = median(samples);
  return {std::min(interval.low, middle), std::max(interval.high, middle)};
}

std::optional<double> series_error(std::span<const double> samples) {
  constexpr double kOf95Percent = 2 * 1.96;
  if (samples.size() < kFewestSamples) return std::nullopt;
  const Interval interval = series_interval(samples);
  return (interval.high - interval.low) / kOf95Percent;
}

std::vector<double> pairwise_means(std::span<const double> values) {
  std::vector<double> means;
  means.reserve(values.size() * (values.size() + 1) / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) means.push_back(0.5 * (values[i] + values[j]));
  }
  return means;
}

PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, double confidence) {
  if (a.size() != reference.size()) throw std::invalid_argument("a paired ratio of samples from different numbers of blocks");
  if (a.empty()) throw std::invalid_argument("a paired ratio of no blocks");
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
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

}  // namespace firkin
