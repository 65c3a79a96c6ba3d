#include "firkin/stats/shape.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "firkin/stats/summary.h"

namespace firkin {

namespace {

// The standard deviation of normal noise, as a multiple of its median absolute deviation, 1 / 0.6745, and of its mean one, sqrt(pi / 2).
constexpr double kStdevPerMedianDeviation = 1.482602218505602;
constexpr double kStdevPerMeanDeviation = 1.2533141373155003;

double distance_from_median(std::span<const double> values) {
  const double centre = median(values);
  double distance = 0;
  for (const double value : values) distance += std::abs(value - centre);
  return distance;
}

}  // namespace

std::vector<size_t> find_outliers(std::span<const double> values, double threshold) {
  if (!(threshold > 0)) throw std::invalid_argument("an outlier threshold that is not positive");
  const double centre = median(values);
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) distances.push_back(std::abs(value - centre));

  double scale = kStdevPerMedianDeviation * median(distances);
  if (scale == 0) scale = kStdevPerMeanDeviation * mean(distances);

  std::vector<size_t> outliers;
  for (size_t i = 0; i < distances.size(); ++i) {
    if (distances[i] > threshold * scale) outliers.push_back(i);
  }
  return outliers;
}

std::optional<TwoModes> find_two_modes(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  if (!std::isfinite(median(sorted)) || sorted.size() < kFewestForModes) return std::nullopt;
  const size_t fewest = std::max<size_t>(3, sorted.size() / 5);
  const size_t strays = sorted.size() / 20;
  const auto gap_at = [&](size_t i) { return sorted[i + strays] - sorted[i - 1 - strays]; };
  size_t split = fewest;
  for (size_t i = fewest; i + fewest <= sorted.size(); ++i) {
    if (gap_at(i) > gap_at(split)) split = i;
  }
  const double gap = gap_at(split);
  // Of the places in that gap, the widest: a stray belongs to the mode that it lies near.
  for (size_t i = split - strays, end = split + strays; i <= end; ++i) {
    if (sorted[i] - sorted[i - 1] > sorted[split] - sorted[split - 1]) split = i;
  }
  const std::span<const double> low = std::span(sorted).first(split);
  const std::span<const double> high = std::span(sorted).subspan(split);
  const auto n = static_cast<double>(sorted.size());
  if (gap <= kModeGap * (distance_from_median(low) + distance_from_median(high)) / n) return std::nullopt;
  return TwoModes{.low = median(low), .high = median(high), .high_share = static_cast<double>(high.size()) / n};
}

}  // namespace firkin
