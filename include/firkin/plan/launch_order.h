// In which order buckets are launched when the next forward is to begin before all of them have arrived.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firkin {

struct Transfer {
  double ready_s = 0;     // its gradients exist, in seconds from any one point of time
  double duration_s = 0;  // of its all-reduce
  double needed = 0;      // in what order the next forward needs the buckets: lower is earlier; any unit
};

// At each moment at which the link is free, of the buckets that are ready the one that is needed first, and of several such the one that is
// ready first: while backward runs, late layers go because nothing else is ready; afterwards early layers come first. (Earliest deadline
// first with release times, without preemption.) Returns indices into `transfers`. O(n^2).
std::vector<int64_t> launch_order_by_need(std::span<const Transfer> transfers);

}  // namespace firkin
