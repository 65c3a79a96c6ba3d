// The time of an all-reduce by size: the curves a(x), isolated, and g(x), queued back to back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/allreduce_table.h"

namespace firkin {

struct AllReduceBenchOptions {
  std::vector<int64_t> sizes;     // bytes, multiples of 4 (float32 elements), positive
  double seconds_per_size = 0.5;  // time budget for each of the two curves
  int rounds = 10;                // the sizes are measured in turns, in an order shuffled anew, so that drift meets all alike
  uint64_t seed = 0;              // of the order; the same on every rank
  std::function<void(const std::string& done)> on_progress;  // called after every round; may be empty
};

// 4 B, 16 B, ... by factors of 4 up to `largest_bytes`, which is always the last.
std::vector<int64_t> allreduce_sizes(int64_t largest_bytes);

// Every sample is the slowest rank's time, from a barrier to the result. Collective: every rank gets the same table.
AllReduceTable measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options);

}  // namespace firkin
