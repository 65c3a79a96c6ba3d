// The settings that cannot be told from the best one.
//
//   const IndifferenceSet caps = indifference_set(seconds, seed);  // seconds[cap][block]
//   caps.best;     // 3
//   caps.members;  // {2, 3, 4}: any of these is as good, as far as this measurement can see
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "firkin/stats/paired.h"

namespace firkin {

struct IndifferenceSet {
  size_t best = 0;                   // index of the setting
  std::vector<size_t> members;       // indices, ascending; best is one of them
  std::vector<PairedRatio> to_best;  // per setting: its time divided by that of the best, with the interval that decided
};

// Best is the setting with the lowest median, over blocks, of its time divided by the geometric mean of the block's times; the first of
// equals. A member is a setting whose interval of the paired ratio to the best reaches down to 1.
//
// The best of several equal settings is also the luckiest, and a 95 % interval per comparison would then exclude the others too often. So
// each of the k intervals has the confidence 1 - 0.05 / k (Bonferroni's inequality over k - 1 comparisons, and one more for what
// autocorrelation costs, see interval.h): the truly best setting is left out, and two settings that are equal and both truly best are told
// apart, in at most 5 % of measurements. The price is that small differences need blocks: a difference of 3 % under 1 % noise of each
// setting is found between two settings in 2 of 3 measurements with 10 blocks and nearly always with 20, among eight settings with 30.
//
// settings_by_block: [setting][block], seconds; block b was measured in the same stretch of time for every setting, and blocks are in the
// order measured. With fewer than kFewestSamples blocks every setting is a member.
// Deterministic for a seed. O(1000 * settings^2 * blocks): 0.1 s for 8 settings and 30 blocks.
// Throws std::invalid_argument when there is no setting or no block, when settings differ in their number of blocks, or when a time is not
// positive and finite.
IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, uint64_t seed);

}  // namespace firkin
