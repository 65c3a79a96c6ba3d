// Two settings, measured in the same blocks, compared by their ratio.
//
//   const PairedRatio overlap = paired_ratio(overlap_s, flat_s, seed);
//   overlap.ratio;     // 0.91: nine percent less time than flat
//   overlap.interval;  // {0.90, 0.93}; 1 is outside, so the difference is real
#pragma once

#include <cstdint>
#include <span>

#include "firkin/stats/interval.h"

namespace firkin {

struct PairedRatio {
  double ratio = 1;
  Interval interval;
};

// The median over blocks of log(a / reference), exponentiated, with the interval of bootstrap_median.
// What both have in common in a block (a slow machine, drift, a neighbour's load) cancels.
//
// a, reference: seconds (or any positive quantity) of block 0, 1, ... in the order measured; the same blocks in both.
// Throws std::invalid_argument when they are empty or of different length, or hold a value that is not positive and finite.
PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, uint64_t seed, double confidence = 0.95,
                         int resamples = 2000);

}  // namespace firkin
