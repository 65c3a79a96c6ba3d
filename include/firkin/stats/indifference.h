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

// settings_by_block: [setting][block], seconds; block b was measured in the same stretch of time for every setting.
IndifferenceSet indifference_set(const std::vector<std::vector<double>>& settings_by_block, uint64_t seed);

}  // namespace firkin
