// The settings that cannot be told from the best one.
//
//   const IndifferenceSet caps = indifference_set(seconds);  // seconds[cap][block]
//   caps.best;     // 3
//   caps.members;  // {2, 3, 4}: any of these is as good, as far as this measurement can see
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"

namespace firkin {

struct IndifferenceSet {
  size_t best = 0;                   // index of the setting
  std::vector<size_t> members;       // indices, ascending; best is one of them
  std::vector<PairedRatio> to_best;  // per setting: its time divided by that of the best, with the interval that decided
};

// Best is the setting with the lowest median of fit_blocks(); the first of equals. A member is a setting whose interval reaches down to 1.
//
// The best of several equal settings is also the luckiest. So what the settings differ by is compared with what luck alone gives: residuals
// are shuffled among the settings of each block, and in 97.5 % of 1,000 shuffles a setting lies no further above the luckiest than the
// distance c (multiple comparisons with the best, one-sided: Hsu 1984). The truly best setting is left out in at most 2.5 % of
// measurements, however many settings there are, and two that are both truly best are told apart in at most 5 %. That takes their noise to
// be alike; for where one is noisier, the pair's own interval (paired.h) must exclude 1 as well. An interval here reaches from the ratio to
// the farther of the two ends on either side.
//
// settings_by_block: [setting][block], seconds; block b was measured in the same stretch of time for every setting, in random order. With
// fewer than kFewestSamples blocks every setting is a member. Deterministic. O(1000 * settings * blocks^2): 0.06 s for 8 settings and 30
// blocks. `fit`: of these settings, from a fit of more of the same blocks; empty: of these alone. Throws std::invalid_argument as
// fit_blocks().
IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, std::span<const SettingFit> fit = {});

}  // namespace firkin
