// Buckets, split tensors and launch order for the strategy `ordered`, which also hides communication behind the next
// forward pass.
//
//   const OrderedPlan best = find_ordered_plan(profile, costs);
//   best.plan.launch_order;      // of the ready buckets, the one forward needs first goes first
//   best.pipeline.period_s;      // of a step
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/plan/best_plan.h"
#include "firkin/plan/timeline.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {

// The launch order by need: whenever the link is free, of the buckets that are ready, the one whose tensors the next
// forward needs first (earliest due date; Jackson 1955). It follows from simulated times, so that all ranks find the
// same. Empty when it is the ready order. The profile and the plan must have passed their checks; plan.launch_order is
// ignored. O(n log n).
std::vector<int64_t> launch_order_by_need(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                                          const PipelineOptions& options = {});

struct OrderedSearchOptions {
  PipelineOptions pipeline = {};
  // Plans within this fraction of the best period count as equal; of those, one with fewer buckets is returned.
  double tolerance = 1e-6;
  int64_t largest_bucket_bytes = std::numeric_limits<int64_t>::max();  // no bucket of several tensors holds more
  int64_t most_buckets = std::numeric_limits<int64_t>::max();
  int64_t most_parts = 64;  // how many parts a split tensor may have
  int64_t smallest_part_bytes = 64 * kKiB;
};

struct OrderedPlan {
  BucketPlan plan;
  Pipeline pipeline;   // its steady step
  double bound_s = 0;  // pipeline_bound_s(): no plan is faster
};

// A search, not exact. It starts from the partitions of uniform caps, whole or with tensors larger than the cap split,
// and from the best plan for a single backward pass, each launched by need, and improves the best of them by local
// moves. In 13 of 5,000 random instances of up to 5 tensors it ends more than 0.1 % above the best of all partitions,
// splits in two and launch orders, at worst 2.5 % above. 436 tensors take half a second at most. Deterministic. Throws
// InputError if the profile or the options fail their checks, or no plan meets the limits.
OrderedPlan find_ordered_plan(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options = {});

// Seconds from the start of backward; what ends after the end of backward runs under the next forward pass.
struct PredictedOrderedBucket {
  int64_t bucket = 0;        // its place among the buckets in gradient-ready order, from 0
  int64_t first_tensor = 0;  // the place of its first tensor in gradient-ready order, from 0
  int64_t part = 0;          // which part, if the tensor is split
  int64_t parts = 1;
  int64_t bytes = 0;
  std::vector<std::string> tensors;
  double ready_s = 0, start_s = 0, end_s = 0;
  double needed_s = 0;  // first use, seconds from the start of the next forward pass if that never waits
};

struct PredictedOrdered {
  double bucketed_period_s = 0;  // forward, backward with the best uniform cap, and the optimiser
  double period_s = 0;
  double gain = 0;     // 1 - period_s / bucketed_period_s; below 0 where ordered is slower
  double bound_s = 0;  // no plan has a shorter period
  double waited_s = 0;
  double computation_s = 0;
  double communication_s = 0;
  double agreement_s = 0;  // after backward
  // Holds 95 % of the draws of uncertain inputs; none if no errors are known.
  std::optional<double> low_s = {}, high_s = {};
  std::vector<PredictedOrderedBucket> buckets;  // in launch order
  BucketPlan plan;                              // the same as a plan to simulate or run
};

// Options for simulate_pipeline(). The agreement after backward takes as long as an all-reduce of 64 bytes.
PipelineOptions pipeline_options(const CommCosts& costs, const SimulationOptions& simulation);

// Periods of the plan, one per draw.
std::vector<double> drawn_periods(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws);

// The plan with the launch order that ranks would choose in training (robust_launch_order()) had they seen the draws as
// steps, if its mean period over them is shorter. An order that is best for one draw leaves the link idle in draws
// whose ready times are all too early or all too late.
BucketPlan with_robust_order(const TensorProfile& profile, BucketPlan plan, const std::vector<InputDraw>& draws);

// `bucketed_backward_s`: backward with its communication under the best uniform cap. The plan is find_ordered_plan()'s,
// in an order that is robust over the draws. Throws InputError as find_ordered_plan().
PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s,
                                 const SearchOptions& search = {}, const std::vector<InputDraw>& draws = {});

}  // namespace firkin
