// Buckets and launch order for the strategy `ordered`, which also hides communication behind the next forward pass:
// predicted from measurements, or, for the order of given buckets, chosen from observed steps.
//
//   const OrderedPlan best = find_ordered_plan(profile, costs);
//   best.plan.launch_order;      // of the ready buckets, the one forward needs first goes first
//   best.pipeline.period_s;      // of a step
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "firkin/plan/best_plan.h"
#include "firkin/plan/timeline.h"
#include "firkin/plan/uncertainty.h"

namespace firkin {

// The launch order by need: whenever the link is free, the ready bucket that the next forward needs first goes next
// (earliest due date; Jackson 1955). Uses simulated times, so all ranks find the same order. Empty when it is the ready
// order. The profile and the plan must have passed their checks; plan.launch_order is ignored. O(n log n).
std::vector<int64_t> launch_order_by_need(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                                          const SimulationOptions& options = {});

struct OrderedPlan {
  BucketPlan plan;
  Pipeline pipeline;   // its steady step
  double bound_s = 0;  // pipeline_bound_s(): no plan is faster
};

// A heuristic search: starts from uniform caps and the best plan for a single backward pass (`of_backward`, if known),
// each launched by need, and improves the best few by merging, cutting and shifting buckets. Ends within 0.01 % of the
// bound, with the plan of fewest buckets. Deterministic. Throws InputError if the profile or the options fail their
// checks, or no plan meets the limits.
OrderedPlan find_ordered_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options = {},
                              std::optional<BucketPlan> of_backward = {});

// A bucket of the plan. Times are seconds from the start of backward; what ends after backward runs under the next
// forward pass.
struct PredictedOrderedBucket : PredictedBucket {
  int64_t first_tensor = 0;  // the place of its first tensor in gradient-ready order, from 0
  double needed_s = 0;       // first use, seconds from the start of the next forward pass if that never waits
};

struct PredictedOrdered : PredictedPeriod {
  double low_s = 0, high_s = 0;                      // set by predict(), as for a cap
  std::vector<PredictedOrderedBucket> buckets = {};  // in launch order
  BucketPlan plan = {};                              // the same as a plan to simulate or run
};

// The options with the agreement after backward, which takes as long as an all-reduce of 64 bytes.
SimulationOptions with_agreement(SimulationOptions options, const CommCosts& costs);

// The plan's period in each draw, in seconds.
std::vector<double> drawn_periods(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws);

// Launches the plan in the order that ranks would choose in training (robust_launch_order()) had they seen the draws as
// steps, if that shortens its mean period. An order that is best for one draw leaves the link idle in others.
BucketPlan with_robust_order(const TensorProfile& profile, BucketPlan plan, const std::vector<InputDraw>& draws);

// `bucketed_backward_s`: backward with its communication under the best uniform cap. The plan is find_ordered_plan()'s,
// in an order that is robust over the draws. Throws InputError as find_ordered_plan().
PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s,
                                 SearchOptions options = {}, const std::vector<InputDraw>& draws = {},
                                 std::optional<BucketPlan> of_backward = {});

// ---- The launch order from observed steps.
//
// The order is fixed before the step, and equal on every rank. If it assumes ready times that are too early, a late
// bucket holds back ready ones; if too late, what forward needs first waits. So ready times get a slack, chosen by
// simulating every observed step.

struct ObservedStep {
  std::vector<double> ready_s;  // per bucket: every rank has its gradients; seconds from the first gradient of backward
  double backward_s = 0;
};

struct ObservedTraining {
  std::vector<ObservedStep> steps;  // at least one
  std::vector<double> transfer_s;   // per bucket: seconds its all-reduce occupies the link
  std::vector<double> needed_s;     // per bucket: seconds from the end of backward to its first use, without waits
  double forward_s = 0;             // from the end of backward to the start of the next, without waits
};

struct LaunchOrder {
  std::vector<int64_t> order;  // the buckets' indices
  double slack = 1;            // ready times were multiplied by it to make the order
  double period_s = 0;         // for a step in this order: the mean over the observed steps
};

// One order for each slack, at least 0; by default for a range of them, ascending: from "what forward needs first,
// whenever it is ready" to "as they become ready". Whenever the link is free, it takes the bucket forward needs first
// among those whose median ready time times the slack has passed (Jackson 1955). Throws InputError unless there is a
// step and sizes agree. O(n^2) each.
std::vector<LaunchOrder> launch_orders(const ObservedTraining& training, std::vector<double> slacks = {});

// The middle of the contiguous range of launch_orders() within half a percent of the best period: at an edge, a
// slightly slower step would cost most.
LaunchOrder robust_launch_order(const ObservedTraining& training);

}  // namespace firkin
