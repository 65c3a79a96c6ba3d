// The best bucket plan in gradient-ready order, the best one that a uniform cap makes, and the rules of other libraries
// and papers.
//
//   const BestPlan best = find_best_plan(profile, costs);
//   best.timeline.exposed_s;    // no other plan of contiguous buckets exposes less in that order
//   const UniformCap cap = find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost});
//   roundest_cap(cap.caps);  // any other of cap.caps makes the same buckets
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/timeline.h"

namespace firkin {

struct SearchOptions {
  // Plans within this fraction of the best time count as equal; the one with the fewest buckets is returned.
  double tolerance = 1e-6;
  // A larger bucket is allowed only for a single tensor.
  int64_t largest_bucket_bytes = std::numeric_limits<int64_t>::max();
  int64_t most_buckets = std::numeric_limits<int64_t>::max();  // for find_ordered_plan() and find_sharded_cap() only
  SimulationOptions simulation = {};
};

inline constexpr int64_t kMostExactTensors = 4096;  // takes half a second

struct BestPlan {
  BucketPlan plan;
  Timeline timeline;   // that plan's, under the same options
  bool exact = false;  // the best of all plans in ready order; otherwise the best of a few
};

// Exact for any two curves without contention, among plans of whole tensors launched in ready order: with e(i, j) the
// bucket of tensors i .. j - 1 and o the overhead per call, the earliest end of the communication of the first j
// tensors in n buckets is
//
//   F(j, n) = min over i < j of max(ready_j + n o + a(e(i, j)), F(i, n - 1) + g(e(i, j)))
//
// That takes time quadratic in the number of tensors. Beyond kMostExactTensors, neighbours are kept together in runs of
// up to about 2 / kMostExactTensors of all bytes, which delays a bucket by at most the time of that many bytes.
//
// With contention: the best, by simulation, of plans that are exact for ready times slowed to several degrees, and of
// the best uniform caps. Throws InputError if the profile or the options do not pass their checks.
BestPlan find_best_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options = {});

// The best plan without contention; beyond `most_tensors`, neighbours are kept together as above. Checks nothing.
BucketPlan exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options,
                      int64_t most_tensors = kMostExactTensors);

// One partition that a uniform cap makes, and all caps that make it; roundest_cap(caps) is the one to name.
struct UniformCap {
  CapInterval caps;
  BucketPlan plan;
};

struct DistinctPlans {
  std::vector<UniformCap> plans;  // by rising cap
  bool exhaustive = true;         // false if caps that differ by little were skipped
};

// Every distinct partition a uniform cap can make, at most L^2 / 2 for L tensors. Ignores options.cap_bytes and leaves
// out partitions with a bucket of several tensors above search.largest_bucket_bytes.
//
// If they hold more than `effort` buckets in all, caps that differ by less than a few per mille are skipped; the
// default suffices for about 500 tensors of distinct sizes, or thousands of a few sizes. Throws InputError if the
// profile or the options do not pass their checks, or no partition respects the limit.
DistinctPlans distinct_plans(const TensorProfile& profile, const CapOptions& options, const SearchOptions& search = {},
                             int64_t effort = 4000000);

struct BestUniformCap : UniformCap {
  Timeline timeline;
  bool exhaustive = true;  // as in DistinctPlans
};

// Among the distinct partitions within search.tolerance of the best, the one with the fewest buckets. Throws InputError
// as distinct_plans() does.
BestUniformCap find_best_uniform_cap(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                     const SearchOptions& search = {}, int64_t effort = 4000000);

struct Baseline {
  std::string name;
  std::string description;
  BucketPlan plan;
};

// Plans of other libraries and papers, in this order: pytorch (25 MiB, close-when-full, first bucket 1 MiB), horovod
// (128 MiB, at-most: its fusion buffer, without its cycle time), one_bucket, one_per_tensor, mg_wfbp. The profile must
// have passed check_profile().
std::vector<Baseline> baselines(const TensorProfile& profile, const CommCosts& costs);

// MG-WFBP (Shi, Chu, Li: INFOCOM 2019): a bucket also takes the next tensor if that becomes ready less than one
// start-up time (the alpha of fit_alpha_beta on a(x)) after the bucket could have been sent, because waiting then costs
// less than a second start-up. O(n).
BucketPlan mg_wfbp_plan(const TensorProfile& profile, const CostCurve& isolated);

}  // namespace firkin
