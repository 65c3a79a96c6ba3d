// Settings measured in the same blocks: each setting's time with the machine's good and bad stretches removed.
//
//   const BlockFit fit = fit_blocks(step_s);  // [setting][block]
//   fit[3].median;    // 0.085: seconds of a step in a typical block
//   fit[3].interval;  // {0.079, 0.092}
//
// The logarithm of a time is modelled as setting + block + noise and fitted by median polish (Tukey 1977). The other
// settings tell how slow a block was, which gives a setting's times in a typical block; the interval comes from the
// order statistics of these (interval.h). A single setting gets the interval of its series. On recorded noise
// (tests/stats/data; 6 to 30 blocks) 95 % intervals of eight settings hold the true median in 93 to 96 %, those of four
// in 91 to 94 % (once 84), of two in 87 to 93 % (once 79).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "firkin/stats/estimates.h"

namespace firkin {

struct SettingFit {
  double median = 0;  // in a typical block, in the unit of the samples
  // Unbounded with fewer than kFewestSamples blocks; never wider than the samples' range.
  Interval interval;
  std::vector<double> polished;  // per block: the sample, as it would be in a typical block
};

using BlockFit = std::vector<SettingFit>;  // one per setting

// settings_by_block: [setting][block], the same blocks for every setting, in the order measured. O(settings * blocks *
// settings). Throws std::invalid_argument when there is no setting or no block, when settings differ in their number of
// blocks, a sample is not positive and finite, or confidence is not between 0 and 1.
BlockFit fit_blocks(const std::vector<std::vector<double>>& settings_by_block, double confidence = 0.95);

struct IndifferenceSet {
  size_t best = 0;              // index of the setting
  std::vector<size_t> members;  // indices, ascending; best is one of them
  // Per setting: its time divided by that of the best, with the interval that decided.
  std::vector<PairedRatio> to_best;
};

// The best setting is the one with the lowest median of fit_blocks(), or the first of equals. A setting is a member if
// its interval reaches down to 1.
//
// The best of several equal settings is also the luckiest, so differences are compared with what luck alone produces:
// residuals are shuffled among the settings of each block, and c is the distance above the luckiest setting that is not
// exceeded in 97.5 % of 1,000 shuffles (multiple comparisons with the best, one-sided: Hsu 1984). This assumes that all
// settings have similar noise. In case one is noisier, the pair's own interval (paired.h) must exclude 1 as well: an
// interval in to_best reaches to the farther of the two ends on either side.
//
// settings_by_block: [setting][block], seconds; block b was measured in the same stretch of time for every setting, in
// random order. With fewer than kFewestSamples blocks every setting is a member. Deterministic. 8 settings take 0.07 s
// with 30 blocks and 0.8 s with 1,000, of which at most kMostBlocks are paired. `fit`: the fits of these settings, from
// a fit of more settings in the same blocks; if empty, these are fitted alone. Throws std::invalid_argument as
// fit_blocks().
IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, std::span<const SettingFit> fit = {});

}  // namespace firkin
