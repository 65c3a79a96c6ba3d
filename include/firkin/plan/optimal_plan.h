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
  SimulationOptions simulation = {};
};

struct PlannedBuckets {
  BucketPlan plan;
  Timeline timeline;   // of that plan, under the same options
  bool exact = false;  // whether it is the best of all plans in ready order, or the best of a few
};

// Exact for any two curves, however they bend, without contention, and for buckets that are launched in ready order (another order, or a
// split tensor, may do better: they are not searched): with e(i, j) the bucket of tensors i .. j - 1 and o the overhead per call,
//
//   F(j, n) = min over i < j of max(ready_j + n o + a(e(i, j)), F(i, n - 1) + g(e(i, j)))
//
// is the earliest end of the communication of the first j tensors in n buckets (more time before never hurts: the recursion is monotone in
// F(i, n - 1)). O(L^2) pairs, each for as many numbers of buckets as gain something.
//
// With contention: the best of a few starts, judged by the simulation: plans that are exact without contention, of costs and ready times
// that are slowed down more or less, and the best uniform caps.
//
// Throws InputError when the profile or the options do not pass their checks.
PlannedBuckets find_optimal_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options = {});

// The plan that would be best without the slowdowns of options.simulation. Checks nothing.
BucketPlan exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options);

}  // namespace firkin
