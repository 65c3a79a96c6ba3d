// How far a median can be trusted: an interval that holds it with a stated probability.
//
//   const Interval step = bootstrap_median(step_s, seed);  // holds the true median of the step time in 95 % of runs
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace firkin {

inline constexpr size_t kFewestSamples = 4;  // with fewer, an interval is unbounded

struct Interval {
  double low = 0;
  double high = 0;

  bool contains(double value) const { return low <= value && value <= high; }
  bool overlaps(const Interval& other) const { return low <= other.high && other.low <= high; }
};

// Confidence interval of the median of the process that `samples`, in the order in which they were measured, come from.
Interval bootstrap_median(std::span<const double> samples, uint64_t seed, double confidence = 0.95, int resamples = 2000);

}  // namespace firkin
