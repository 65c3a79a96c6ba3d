// Order statistics and moments of a sample.
//
//   const Summary step = summarize(step_s);  // step.median, step.p99, ... in the unit of step_s
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firkin {

struct Summary {
  double median = 0;
  double mean = 0;
  double stdev = 0;  // the sample's, with divisor count - 1; 0 for a single value
  double min = 0;
  double max = 0;
  double p99 = 0;
  int64_t count = 0;
};

// All functions here throw std::invalid_argument when `values` is empty or holds a value that is not finite: a missing
// measurement must not pass as a number. They leave `values` as it is, are O(n) and may be called from several threads.

// The middle value, or the mean of the two middle values.
double median(std::span<const double> values);

// The value below which the fraction q of the sample lies: linearly interpolated between the order statistics at rank
// q * (n - 1) (type 7 of Hyndman and Fan 1996; the default of R and NumPy). q = 0 is the minimum, q = 1 the maximum.
// Throws std::invalid_argument unless 0 <= q <= 1.
double quantile(std::span<const double> values, double q);

// The medians of at most `most` stretches of neighbours, equally long except the last. A series of at most `most`
// values is returned unchanged.
std::vector<double> medians_of_stretches(std::span<const double> series, size_t most);

// The median of each column. All rows have the same length.
std::vector<double> column_medians(const std::vector<std::vector<double>>& rows);

// The arithmetic mean.
double mean(std::span<const double> values);

// Standard deviation with divisor n - 1; 0 for a single value.
double stdev(std::span<const double> values);

// All of the above at once.
Summary summarize(std::span<const double> values);

}  // namespace firkin
