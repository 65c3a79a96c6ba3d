#include "firkin/stats/summary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace firkin {

namespace {

void require_finite_sample(std::span<const double> values) {
  if (values.empty()) throw std::invalid_argument("statistics of no values");
  if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); })) {
    throw std::invalid_argument("statistics of a value that is not finite");
  }
}

// Reorders `values`, which are finite and not empty.
double select_quantile(std::span<double> values, double q) {
  const double rank = q * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(below);
  std::nth_element(values.begin(), at, values.end());
  const double fraction = rank - static_cast<double>(below);
  if (fraction == 0) return *at;
  const double above = *std::min_element(at + 1, values.end());
  return std::lerp(*at, above, fraction);
}

}  // namespace

double median(std::span<const double> values) {
  return quantile(values, 0.5);
}

double quantile(std::span<const double> values, double q) {
  require_finite_sample(values);
  if (!(q >= 0 && q <= 1)) throw std::invalid_argument("a quantile outside 0 to 1");
  std::vector<double> reordered(values.begin(), values.end());
  return select_quantile(reordered, q);
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

}  // namespace firkin
