// The dynamic programme behind find_optimal_plan: one channel, no contention.
#pragma once

#include "firkin/plan/optimal_plan.h"

namespace firkin {

// The plan alone. Ignores the slowdowns and channels of options.simulation. The profile must have passed check_profile.
BucketPlan find_exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options);

}  // namespace firkin
