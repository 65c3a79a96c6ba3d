#include "bench/sampling.h"

#include <algorithm>
#include <limits>

#include "firkin/stats/interval.h"
#include "firkin/stats/summary.h"

namespace firkin {

double relative_width(std::span<const double> samples) {
  if (samples.size() < kFewestSamples) return std::numeric_limits<double>::infinity();
  const Interval interval = series_interval(samples);
  return (interval.high - interval.low) / median(samples);
}

std::vector<size_t> widest_points(const std::vector<std::vector<double>>& samples, double seconds_left) {
  std::vector<size_t> points;
  std::vector<double> widths(samples.size());
  for (size_t i = 0; i < samples.size(); ++i) {
    if (median(samples[i]) > seconds_left) continue;
    points.push_back(i);
    widths[i] = relative_width(samples[i]);
  }
  std::ranges::stable_sort(points, std::ranges::greater{}, [&widths](size_t point) { return widths[point]; });
  constexpr size_t kPart = 3;
  points.resize((points.size() + kPart - 1) / kPart);
  return points;
}

}  // namespace firkin
