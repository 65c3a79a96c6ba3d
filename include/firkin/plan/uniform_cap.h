// The best uniform bucket cap, of all caps.
//
//   const UniformCap best = find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost});
//   best.cap_bytes;  // any cap from best.lowest_cap_bytes to best.highest_cap_bytes makes the same buckets
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/optimal_plan.h"
#include "firkin/plan/timeline.h"

namespace firkin {

struct UniformCap {
  int64_t cap_bytes = 0;  // the roundest of the caps that make these buckets
  int64_t lowest_cap_bytes = 0;
  int64_t highest_cap_bytes = 0;
  BucketPlan plan;
  Timeline timeline;
  bool exhaustive = true;  // every distinct partition was tried; else caps that differ by little were skipped
};

struct CapInterval {
  int64_t lowest_cap_bytes = 0;
  int64_t highest_cap_bytes = 0;  // int64's largest value when a larger cap changes nothing
};

// All caps that make the same buckets as options.cap_bytes does (with the same rule and the same first cap).
CapInterval caps_with_same_buckets(std::span<const int64_t> sizes, const CapOptions& options, const BucketPlan& plan);

// One way in which a uniform cap cuts the gradients, and the caps that cut so.
struct DistinctPlan {
  CapInterval caps;
  BucketPlan plan;
};

struct DistinctPlans {
  std::vector<DistinctPlan> plans;  // by rising cap
  bool exhaustive = true;           // else caps that differ by little were skipped
};

// Every distinct partition that a uniform cap can make, with the limits and the effort of find_best_uniform_cap.
DistinctPlans distinct_plans(const TensorProfile& profile, const CapOptions& options, const SearchOptions& search = {},
                             int64_t effort = 4000000);

// The number of the interval that is a multiple of the largest power of two, so 26 MiB rather than 25.39 MiB; at most twice the lowest.
// From 1 byte on, where every tensor is alone, at least half the highest instead: 2 bytes would do, but tell nobody anything.
int64_t roundest_cap(const CapInterval& interval);

// Tries every distinct partition that a uniform cap can make: from each cap to the next at which a bucket changes. options.cap_bytes is
// ignored. Of plans within search.tolerance of the best, one with the fewest buckets. Partitions with a bucket of several tensors above
// search.largest_bucket_bytes are left out.
//
// There are at most L^2 / 2 partitions. When they hold more than `effort` buckets in all, caps that differ by less than a few per mille are
// skipped and `exhaustive` is false; the default suffices for about 500 tensors of all different sizes, or thousands of a few sizes.
// Throws InputError when the profile or the options do not pass their checks, or no partition respects the limit.
UniformCap find_best_uniform_cap(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                 const SearchOptions& search = {}, int64_t effort = 4000000);

}  // namespace firkin
