// Settings measured in the same blocks: what each takes once the machine's good and bad stretches are taken out.
//
//   const BlockFit fit = fit_blocks(step_s);  // [setting][block]
//   fit[3].median;    // 0.085: seconds of a step in a typical block
//   fit[3].interval;  // {0.079, 0.092}
//
// The logarithm of a time is taken for setting + block + noise, fitted by median polish (Tukey 1977): a slow block slows all settings, and
// no single time moves the fit far. What a setting's times are in a typical block follows from what the other settings say of each, and the
// interval is that of the order statistics of these (interval.h). Of a setting alone there are no blocks to take out: it is that of its
// series. Settings that are alike have the median of all their samples.
//
// On recorded noise (tests/stats/data; 6 to 30 blocks) 95 % intervals of eight settings hold the true median in 93 to 96 %, those of four
// in 91 to 94 % (once 84), of two in 87 to 93 % (once 79): few settings know less of the level that all of them share, which no comparison
// sees.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "firkin/stats/interval.h"
#include "firkin/stats/shape.h"

namespace firkin {

struct SettingFit {
  double median = 0;              // in a typical block, in the unit of the samples
  Interval interval;              // unbounded with fewer than kFewestSamples blocks; never wider than the samples' range
  std::vector<double> polished;   // per block: the sample, as it would be in a typical block
  std::vector<size_t> outliers;   // blocks that the polished samples of this setting stand out in
  std::optional<TwoModes> modes;  // of the polished samples
};

using BlockFit = std::vector<SettingFit>;  // one per setting

// settings_by_block: [setting][block], the same blocks for every setting, in the order measured.
// O(settings * blocks * settings). Throws std::invalid_argument when there is no setting or no block, when settings differ in their number
// of blocks, a sample is not positive and finite, or confidence is not between 0 and 1.
BlockFit fit_blocks(const std::vector<std::vector<double>>& settings_by_block, double confidence = 0.95);

}  // namespace firkin
