// Two settings, measured in the same blocks, compared by their ratio.
//
//   const PairedRatio overlap = paired_ratio(overlap_s, flat_s);
//   overlap.ratio;     // 0.91: nine percent less time than flat
//   overlap.interval;  // {0.90, 0.93}; 1 is outside, so the difference is real
#pragma once

#include <span>
#include <vector>

#include "firkin/stats/interval.h"

namespace firkin {

// More blocks are condensed to the medians of this many stretches, because the estimate takes time quadratic in their
// number.
inline constexpr size_t kMostBlocks = 100;

struct PairedRatio {
  double ratio = 1;
  Interval interval;
};

// The Hodges-Lehmann estimate (1963) of log(a / reference), exponentiated, with the interval of Wilcoxon's signed ranks
// (Tukey 1949). Whatever affects both settings in a block cancels. Blocks run their settings in random order, so for
// two equal settings either sign of a block's difference is equally likely, and the interval excludes 1 in at most 5 %
// of cases, whatever the noise.
//
// a, reference: seconds (or any positive quantity) of block 0, 1, ... in the order measured; the same blocks in both.
// At most kMostBlocks are paired. With fewer than kFewestSamples blocks the 95 % interval is {0, infinity}. Throws
// std::invalid_argument if they are empty or of different length, contain a value that is not positive and finite, or
// confidence is not between 0 and 1.
PairedRatio paired_ratio(std::span<const double> a, std::span<const double> reference, double confidence = 0.95);

// The means of all pairs of values, including each value with itself. Their median is Hodges and Lehmann's estimate
// (1963) of the centre.
std::vector<double> pairwise_means(std::span<const double> values);

// The ratio of the medians of two series in the order measured. Their lengths may differ. They count as independent: the
// distances of the ends of each series_interval() from its median, as logarithms, add up as squares (method of variance
// estimates recovery, Zou and Donner 2008).
// Throws std::invalid_argument when one is empty or holds a value that is not positive and finite.
PairedRatio unpaired_ratio(std::span<const double> a, std::span<const double> reference);

}  // namespace firkin
