// Plans under contention or with several channels, where no exact search is known: moves from the best starts.
#pragma once

#include "firkin/plan/optimal_plan.h"

namespace firkin {

// Never worse than the plan that is exact without contention, nor than the best uniform cap under either rule (unless the first bucket is
// pinned, when no uniform cap is a start). Deterministic.
BucketPlan find_plan_locally(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options);

}  // namespace firkin
