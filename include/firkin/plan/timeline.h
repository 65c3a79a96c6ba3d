// The timeline of a bucket plan: one backward pass, or a steady step in which communication also overlaps the next forward pass (the
// strategies `ordered` and `sharded`).
//
//   simulate(profile, plan, costs).exposed_s;           // what communication adds to the backward pass
//   simulate_pipeline(profile, plan, costs).period_s;   // from one step's start to the next one's
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

// Overhead of a launch besides the all-reduce, and how much computation and communication slow each other. The default is none.
struct SimulationOptions {
  double overhead_s = 0;        // per call, on the thread that runs backward
  double compute_slowdown = 1;  // of backward while an all-reduce runs: at least 1
  double comm_slowdown = 1;     // of all-reduces while backward runs: at least 1

  bool operator==(const SimulationOptions&) const = default;
};

struct PipelineOptions {
  SimulationOptions simulation = {};
  double agreement_s = 0;  // one small exchange between the ranks, over a connection of its own, after backward: at least 0

  bool operator==(const PipelineOptions&) const = default;
};

// Both throw InputError unless all are finite and within the bounds above.
void check_options(const SimulationOptions& options);
void check_options(const PipelineOptions& options);

// One bucket's communication. Seconds from the start of backward, or of a pipeline's step.
struct BucketSpan {
  int64_t bytes = 0;
  double ready_s = 0;   // its last gradient exists, by the profile
  double start_s = 0;   // the call is made, and the link is free
  double end_s = 0;     // reduced
  double launch_s = 0;  // the call is made
  int64_t bucket = 0;   // its index in the plan
};

struct Timeline {
  std::vector<BucketSpan> buckets;  // in launch order
  double compute_end_s = 0;         // end of the backward computation, including launches and slowdown
  double end_s = 0;                 // computation and communication are over
  double exposed_s = 0;             // end_s - profile.backward_s: what communication adds to backward
};

// First in, first out, with latency and gap (LogGP; Alexandrov et al. 1995): end_k = max(launch_k + a(S_k), end_{k-1} + g(S_k)), where
// launch_k is when bucket k is ready and all buckets before it have been launched.
//
// Contention is a fluid of two rates: while both run, backward advances at 1 / compute_slowdown and all-reduces at 1 / comm_slowdown;
// alone, each advances at 1. With both slowdowns 1 the formula above is exact; otherwise it holds on the clock of the communication.
//
// The profile and the plan must have passed check_profile and check_plan. Throws InputError when the options do not pass check_options.
Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options = {});

// A wait of the forward pass for a bucket, or the optimiser's run on its tensors.
struct PipelineSpan {
  int64_t bucket = 0;  // its index in the plan; of a split tensor, the first part's
  double start_s = 0, end_s = 0;
};

// One step. Seconds from its start of forward.
struct Pipeline {
  double period_s = 0;         // the next step begins
  double forward_end_s = 0;    // with its waits and updates; backward begins
  double backward_end_s = 0;   // with its launches
  double computation_s = 0;    // forward, backward, updates and launches, without waits and slowdowns
  double communication_s = 0;  // g(x) of all buckets
  double waited_s = 0;         // the length of all waits; under `sharded` of the one after backward too

  std::vector<BucketSpan> buckets;    // of this step, in launch order: one that ends after period_s ends in the next step's forward
  std::vector<BucketSpan> gathers;    // `sharded`: likewise; each is ready when its part has been stepped
  std::vector<PipelineSpan> waits;    // of forward, for buckets of the step before
  std::vector<PipelineSpan> updates;  // on buckets of the step before; none under `sharded`, which steps between backward and forward
};

// Backward is that of simulate(), and so is contention. When it ends the ranks agree, and the next forward begins. At a tensor's needed_s
// forward waits for its bucket (of a split tensor, for all parts), and then the optimiser runs on it; while forward is blocked, the
// optimiser runs on other buckets, in order of arrival, one at a time and each to its end. Every bucket has been awaited when backward
// begins, so every step takes equally long.
//
// A profile that does not know its forward pass needs every tensor at 0; one without update_s takes updates for free. Profile and plan must
// have passed check_profile and check_plan. Throws InputError when the options do not pass check_options. O(n log n).
Pipeline simulate_pipeline(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                           const PipelineOptions& options = {});

// The strategy `sharded`, among `ranks`: during backward a bucket's reduce-scatter is launched as an all-reduce would be. When backward has
// ended the ranks agree, and wait for all sums. Then each steps its part of one bucket after another (1 / ranks of update_s), in the order
// in which forward needs them, of those needed at once the one that is ready last first, and launches the bucket's all-gather; forward
// begins behind the last of them, and waits for a bucket where simulate_pipeline() does. Every gather has arrived when backward begins.
//
// As simulate_pipeline(). Throws InputError for a plan that splits a tensor, and unless `ranks` is positive.
Pipeline simulate_sharded(const TensorProfile& profile, const BucketPlan& plan, const ShardedCosts& costs, int64_t ranks,
                          const PipelineOptions& options = {});

// No plan has a shorter period: the larger of what one step computes, and of all its bytes at the best rate that any bucket may have (the
// least of a(x) / x and g(x) / x).
double pipeline_bound_s(const TensorProfile& profile, const CommCosts& costs, const PipelineOptions& options = {});
double sharded_bound_s(const TensorProfile& profile, const ShardedCosts& costs, int64_t ranks, const PipelineOptions& options = {});

}  // namespace firkin
