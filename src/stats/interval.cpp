#include "firkin/stats/interval.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "firkin/stats/summary.h"

namespace firkin {

namespace {

constexpr size_t kMostStretches = 32;
constexpr double kLargestCorrelation = 0.9;

void require_samples(std::span<const double> samples, double confidence) {
  if (samples.empty()) throw std::invalid_argument("an interval from no samples");
  if (!std::ranges::all_of(samples, [](double sample) { return std::isfinite(sample); })) {
    throw std::invalid_argument("an interval from a sample that is not finite");
  }
  if (!(confidence > 0 && confidence < 1)) throw std::invalid_argument("a confidence outside 0 to 1");
}

// How deep in n sorted samples, from either side, the ends of the interval lie: 1 is the outermost sample, 2.5 half way between the second
// and the third. 0: the range does not suffice.
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

// The ends at a depth from 1 to (n + 1) / 2.
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

// Of the ranks of neighbours, corrected for the bias of short series (Kendall 1954); from 0 to kLargestCorrelation.
double neighbour_correlation(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  std::vector<double> ranks;  // from the middle; of equal values the mean
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

}  // namespace

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
  // The same fraction of the samples lies outside as would of so many independent ones.
  const double depth = (depth_of(fewer, confidence) - 0.5) * n / static_cast<double>(std::max<size_t>(fewer, 1)) + 0.5;
  const Interval interval = at_depth(values, std::max(1.0, depth));
  const double middle = median(samples);
  return {std::min(interval.low, middle), std::max(interval.high, middle)};
}

}  // namespace firkin
