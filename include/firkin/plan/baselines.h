// The ways to cut gradients into buckets that others ship or have published, simulated on the same profile.
#pragma once

#include <string>
#include <vector>

#include "firkin/plan/timeline.h"

namespace firkin {

struct Baseline {
  std::string name;
  std::string description;
  BucketPlan plan;
};

// In this order: pytorch (25 MiB, close-when-full, first bucket 1 MiB), horovod (128 MiB, at-most: its fusion buffer, without its cycle
// time), one_bucket, one_per_tensor, mg_wfbp.
std::vector<Baseline> baselines(const TensorProfile& profile, const CommCosts& costs);

// MG-WFBP (Shi, Chu, Li: INFOCOM 2019): from the first gradient on, a bucket takes the next tensor too when that becomes ready less than
// one start-up time after the bucket could have been sent: waiting then costs less than a second start-up. The start-up time is the alpha
// of fit_alpha_beta on a(x), and the time to send is a(x). O(n).
BucketPlan mg_wfbp_plan(const TensorProfile& profile, const CostCurve& isolated);

}  // namespace firkin
