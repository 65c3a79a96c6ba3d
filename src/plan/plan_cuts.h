// Bucket plans as the set of places where they cut the gradients, and the plans that differ in one cut.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

// `wanted`, or the plan that differs from it in the fewest cuts, for which `is_free` holds. Nothing when there is none (or, with more than
// a dozen tensors, none among several thousand).
std::optional<BucketPlan> nearest_plan(const BucketPlan& wanted, const std::function<bool(const BucketPlan&)>& is_free);

// Whether some cap, with the rule and the first cap of `rule`, makes exactly this plan. O(n).
bool is_made_by_a_cap(const BucketPlan& plan, std::span<const int64_t> sizes, const CapOptions& rule);

}  // namespace firkin
