// The best way to cut the gradients into buckets that are sent in gradient-ready order, of all ways.
//
//   const PlannedBuckets best = find_optimal_plan(profile, costs);
//   best.plan;                  // contiguous buckets in gradient-ready order
//   best.timeline.exposed_s;    // no other plan of contiguous buckets exposes less in that order
#pragma once

#include <cstdint>
#include <limits>

#include "firkin/plan/timeline.h"

namespace firkin {

struct SearchOptions {
  // Plans whose time is within this fraction of the best are taken for equal; of those, one with the fewest buckets is returned.
  double tolerance = 1e-6;
  // No bucket holds more, unless it is a single tensor.
  int64_t largest_bucket_bytes = std::numeric_limits<int64_t>::max();
  // The first bucket holds exactly this many tensors, within that limit; 0: free.
  int64_t pinned_first_count = 0;
  SimulationOptions simulation = {};
};

struct PlannedBuckets {
  BucketPlan plan;
  Timeline timeline;   // of that plan, under the same options
  bool exact = false;  // whether it is the best of all plans in ready order, or the best that a local search found
};

// Exact for any two curves, however they bend, with one channel and no contention, and for buckets that are launched in ready order
// (another order, or a split tensor, may do better: they are not searched): with e(i, j) the bucket of tensors i .. j - 1,
//
//   F(j) = min over i < j of max(ready_j + a(e(i, j)), F(i) + g(e(i, j)))
//
// is the earliest end of the communication of the first j tensors (more time before never hurts: the recursion is monotone in F(i)). With
// an overhead per call the launch times depend on the number of buckets before, and F on it as well.
//
// O(L^2) with about 2 ns a pair: most pairs are rejected by a lower bound on a(x) and g(x) from a table of narrow cells, in which each
// curve is bounded by a line; the curves themselves are evaluated only where the bound does not decide. With an overhead, O(L^2) per bucket
// count, over the cuts that fewer buckets do not reach as early.
//
// With contention or several channels: local search (merge, split, move a boundary) from the plan that is exact without and from the best
// uniform cap, each move judged by the simulation; never worse than those.
//
// Throws InputError when the profile or the options do not pass their checks.
PlannedBuckets find_optimal_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options = {});

}  // namespace firkin
