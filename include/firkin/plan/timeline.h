// What runs when in one backward pass under a bucket plan.
//
//   const Timeline timeline = simulate(profile, plan, costs);
//   timeline.exposed_s;  // what communication adds to the backward pass
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

// What a launch costs besides the all-reduce, and what computation and communication cost each other. The defaults are: nothing.
struct SimulationOptions {
  int64_t channels = 1;         // all-reduces in flight at once, each as fast as alone: at least 1
  double overhead_s = 0;        // per call, on the thread that runs backward
  double copy_s_per_byte = 0;   // to bring a gradient into its bucket, on the same thread
  double compute_slowdown = 1;  // of backward while an all-reduce runs: at least 1
  double comm_slowdown = 1;     // of all-reduces while backward runs: at least 1

  bool operator==(const SimulationOptions&) const = default;
};

// Throws InputError unless all are finite and within the bounds above.
void check_options(const SimulationOptions& options);

// One bucket's communication. Seconds from the start of backward.
struct BucketSpan {
  int64_t bytes = 0;
  double ready_s = 0;   // its last gradient exists, by the profile
  double start_s = 0;   // the call is made, and its channel is free
  double end_s = 0;     // reduced
  double launch_s = 0;  // the call is made
  int64_t bucket = 0;   // its index in the plan
  int64_t channel = 0;  // the one that carried it, from 0
};

struct Timeline {
  std::vector<BucketSpan> buckets;  // in launch order
  double compute_end_s = 0;         // end of the backward computation, with the launches and the slowdown that it suffered
  double end_s = 0;                 // computation and communication are over
  double exposed_s = 0;             // end_s - profile.backward_s: what communication adds to backward
};

// First in, first out, with latency and gap (LogGP; Alexandrov et al. 1995): end_k = max(launch_k + a(S_k), end_{k-1} + g(S_k)), where
// launch_k is when bucket k is ready and all buckets before it have been launched. With several channels, end_{k-1} is that of the channel
// that is free first.
//
// Contention is a fluid of two rates: while both run, backward advances at 1 / compute_slowdown and all-reduces at 1 / comm_slowdown;
// alone, each advances at 1. With both slowdowns 1 the formula above is exact; otherwise it holds on the clock of the communication.
//
// The profile and the plan must have passed check_profile and check_plan. Throws InputError when the options do not pass check_options.
Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const SimulationOptions& options = {});

}  // namespace firkin
