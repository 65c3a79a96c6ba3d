#include "firkin/stats/outliers.h"

#include <cmath>
#include <stdexcept>

#include "firkin/stats/summary.h"
#include "normal_noise.h"

namespace firkin {

namespace {

// The standard deviation of normal noise, as a multiple of its mean absolute deviation: sqrt(pi / 2).
constexpr double kStdevPerMeanDeviation = 1.2533141373155003;

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

}  // namespace firkin
