// The steady step of training whose communication goes on under the next forward pass: the strategy `ordered`.
//
//   const Pipeline step = simulate_pipeline(profile, plan, costs);
//   step.period_s;  // from one step's start to the next one's
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/plan/timeline.h"

namespace firkin {

struct PipelineOptions {
  SimulationOptions simulation = {};
  double agreement_s = 0;  // one small exchange between the ranks, over a connection of its own, after backward: at least 0

  bool operator==(const PipelineOptions&) const = default;
};

// Throws InputError unless all are finite and within their bounds.
void check_options(const PipelineOptions& options);

// The forward pass stands still until a bucket arrives.
struct PipelineWait {
  int64_t bucket = 0;  // its index in the plan; of a split tensor, the first part's
  double start_s = 0, end_s = 0;
};

// The optimiser runs on a bucket's tensors, or on a split tensor.
struct PipelineUpdate {
  int64_t bucket = 0;  // as above
  double start_s = 0, end_s = 0;
};

// One step. Seconds from its start of forward.
struct Pipeline {
  double period_s = 0;         // the next step begins
  double forward_end_s = 0;    // with its waits and updates; backward begins
  double backward_end_s = 0;   // with its launches
  double computation_s = 0;    // forward, backward, updates, launches and copies, without waits and slowdowns
  double communication_s = 0;  // g(x) of all buckets, shared among the channels
  double waited_s = 0;         // the length of all waits

  std::vector<BucketSpan> buckets;      // of this step, in launch order: one that ends after period_s ends in the next step's forward
  std::vector<PipelineWait> waits;      // for buckets of the step before
  std::vector<PipelineUpdate> updates;  // on buckets of the step before
};

// Backward is that of simulate(): the thread of computation launches a bucket when it is full and all before it in launch order have been
// launched, and the all-reduces run first in, first out. When backward ends the ranks agree, and the next forward begins. At needed_s of a
// tensor its bucket is awaited (a split tensor: all its parts), and then the optimiser runs on it; while forward is blocked, the optimiser
// runs on other buckets, in the order in which they have arrived, one at a time and each to its end. Contention is that of simulate(), in
// forward and in the optimiser as well.
//
// Every bucket has been awaited when backward begins, so the link is idle then, and every step takes as long as the one before: one
// backward with the forward behind it is the whole cycle, and no settling is waited for.
//
// A profile that does not know its forward pass needs every tensor at 0; one without update_s takes updates for free. Profile and plan must
// have passed check_profile and check_plan. Throws InputError when the options do not pass check_options. O(n log n).
Pipeline simulate_pipeline(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                           const PipelineOptions& options = {});

// No plan has a shorter period: the larger of what one step computes, and of all its bytes at the best rate that any bucket may have (the
// least of a(x) / x and g(x) / x, over the channels).
double pipeline_bound_s(const TensorProfile& profile, const CommCosts& costs, const PipelineOptions& options = {});

}  // namespace firkin
