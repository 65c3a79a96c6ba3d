// What runs when in one backward pass under a bucket plan.
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

// One bucket's communication. Seconds from the start of backward.
struct BucketSpan {
  int64_t bytes = 0;
  double ready_s = 0;  // its last gradient exists
  double start_s = 0;
  double end_s = 0;
};

struct Timeline {
  std::vector<BucketSpan> buckets;  // in launch order
  double compute_end_s = 0;         // end of the backward computation
  double end_s = 0;                 // computation and communication are over
  double exposed_s = 0;             // end_s - compute_end_s: communication that backward did not hide
};

// First in, first out, with latency and gap: end_k = max(ready_k + a(S_k), end_{k-1} + g(S_k)).
Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs);

}  // namespace firkin
