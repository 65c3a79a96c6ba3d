// The timeline of a bucket plan: one backward pass, or a steady step in which communication also overlaps the next
// forward pass (the strategies `ordered` and `sharded`).
//
//   simulate(profile, plan, costs).exposed_s;           // what communication adds to the backward pass
//   simulate_pipeline(profile, plan, costs).period_s;   // from one step's start to the next one's
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/measurements.h"

namespace firkin {

// What communication costs besides the all-reduces. Nothing by default.
struct SimulationOptions {
  double overhead_s = 0;        // per call, on the thread that runs backward
  double compute_slowdown = 1;  // slows backward while an all-reduce runs: at least 1
  // One small exchange between the ranks, over a connection of its own, between backward and the next forward.
  double agreement_s = 0;

  bool operator==(const SimulationOptions&) const = default;
};

// Throws InputError unless all are finite and within these bounds.
void check_options(const SimulationOptions& options);

// One bucket's communication. Seconds from the start of backward, or of a pipeline's step.
struct BucketSpan {
  int64_t bytes = 0;
  double ready_s = 0;  // its last gradient exists, by the profile
  double start_s = 0;  // the call is made, and the link is free
  double end_s = 0;    // reduced
  int64_t bucket = 0;  // its index in the plan
};

struct Timeline {
  std::vector<BucketSpan> buckets;  // in launch order
  double compute_end_s = 0;         // end of the backward computation, including launches and slowdown
  double end_s = 0;                 // computation and communication are over
  double exposed_s = 0;             // end_s - profile.backward_s: what communication adds to backward
};

// First in, first out, with latency and gap (LogGP; Alexandrov et al. 1995): end_k = max(launch_k + a(S_k), end_{k-1} +
// g(S_k)), where launch_k is when bucket k is ready and all buckets before it have been launched. Contention: while an
// all-reduce runs, backward advances at 1 / compute_slowdown.
//
// Profile and plan must have passed check_profile and check_plan. Throws InputError if options fail check_options.
Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options = {});

// How long a steady step takes, and what takes that time. Seconds.
struct SteadyStep {
  double period_s = 0;         // from its start to the next one's
  double computation_s = 0;    // forward, backward, updates and launches, without waits and slowdowns
  double communication_s = 0;  // g(x) of all buckets
  double waited_s = 0;         // length of all waits; for `sharded` including the one after backward
};

// One steady step. Seconds from the start of its forward pass.
struct Pipeline : SteadyStep {
  double forward_end_s = 0;   // including its waits and updates; then backward begins
  double backward_end_s = 0;  // including its launches

  // This step's, in launch order. One that ends after period_s ends in the next step's forward.
  std::vector<BucketSpan> buckets;
};

// Backward and contention are those of simulate(). After backward the ranks agree, and the next forward begins. At a
// tensor's needed_s forward waits for its bucket, then the optimiser runs on it; while forward is blocked, the
// optimiser runs on other buckets, in order of arrival, one at a time and each to its end. Every bucket has been
// awaited when backward begins, so every step takes equally long.
//
// In a profile without a forward pass every needed_s must be 0; without update_s, updates are free. Profile and plan
// must have passed check_profile and check_plan. Throws InputError if options fail check_options. O(n log n) in buckets.
Pipeline simulate_pipeline(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                           const SimulationOptions& options = {});

// The strategy `sharded`, among `ranks`: during backward a bucket's reduce-scatter is launched as an all-reduce would
// be. When backward has ended the ranks agree and wait for all sums. Then each rank steps its part of one bucket after
// another (1 / ranks of update_s) and launches the bucket's all-gather, in the order in which forward needs the
// buckets; of those needed at the same time, the one that is ready last goes first. Forward begins after the last
// launch and waits for buckets where simulate_pipeline() does. Every gather has arrived when backward begins.
//
// Otherwise like simulate_pipeline(). Throws InputError if `ranks` is not positive.
Pipeline simulate_sharded(const TensorProfile& profile, const BucketPlan& plan, const ShardedCosts& costs, int64_t ranks,
                          const SimulationOptions& options = {});

// The predicted step of a strategy that also overlaps the next forward pass. Seconds.
struct PredictedPeriod : SteadyStep {
  double bucketed_period_s = 0;  // forward, backward with the best uniform cap, and the optimiser
  double bound_s = 0;            // no plan has a shorter period
  double agreement_s = 0;        // after backward, as in SimulationOptions

  double gain() const { return bucketed_period_s > 0 ? 1 - period_s / bucketed_period_s : 0; }  // below 0: slower
};

// One bucket of a predicted plan, for steady steps or for backward alone.
struct PredictedBucket : BucketSpan {
  std::vector<std::string> tensors;  // their names
};

// A lower bound for the period of any plan: the larger of one step's computation and the time of all its bytes at the
// best rate that any bucket may have (the least of a(x) / x and g(x) / x).
double pipeline_bound_s(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options = {});
double sharded_bound_s(const TensorProfile& profile, const ShardedCosts& costs, int64_t ranks, const SimulationOptions& options = {});

}  // namespace firkin
