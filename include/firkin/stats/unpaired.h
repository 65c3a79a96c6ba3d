// Two measurements that shared no blocks, such as two runs of the program, compared by the ratio of their medians.
//
//   const PairedRatio after = unpaired_ratio(after_s, before_s);
//   after.interval;  // {0.94, 1.02}: holds 1, so these two runs show no difference
//
// What changed on the machine between the two does not cancel as it does in paired_ratio, and no interval knows of it: it says what the two
// measurements differ by, not what their settings do.
#pragma once

#include <span>

#include "firkin/stats/interval.h"
#include "firkin/stats/paired.h"

namespace firkin {

// A median and its interval, as a file states them when the samples themselves are gone.
struct StatedMedian {
  double median = 0;
  Interval interval;
};

// The ratio and its interval from two stated intervals of the same confidence: the distances from the medians are added as squares, for
// independent measurements (method of variance estimates recovery, Zou and Donner 2008), of the logarithms.
// Throws std::invalid_argument when a median is not positive and finite, or lies outside its interval.
PairedRatio ratio_of_stated(const StatedMedian& a, const StatedMedian& reference);

// The same of the medians of two series in the order measured, whose lengths may differ, with the intervals of series_interval().
// Throws std::invalid_argument when one is empty or holds a value that is not positive and finite.
PairedRatio unpaired_ratio(std::span<const double> a, std::span<const double> reference);

}  // namespace firkin
