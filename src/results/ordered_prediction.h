// What `firkin predict` says about the strategy `ordered` and about gradients in a smaller type, as sections of results.json and as tables.
#pragma once

#include <vector>

#include "firkin/plan/prediction.h"
#include "results/field.h"

namespace firkin {

// The ends of an extrapolated range.
inline constexpr const char* kLowKey = "low_s";
inline constexpr const char* kHighKey = "high_s";

nlohmann::json ordered_json(const PredictedOrdered& ordered);

// Throws FieldError, also when the buckets are no plan.
PredictedOrdered read_ordered(const JsonFields& fields);

nlohmann::json hooks_json(const std::vector<PredictedHook>& hooks);
std::vector<PredictedHook> read_hooks(const std::vector<JsonFields>& rows);

// Buckets in launch order; in the terminal the first and the last of many.
Table ordered_table(const PredictedOrdered& ordered, Medium medium);
Table hooks_table(const std::vector<PredictedHook>& hooks, Medium medium);

}  // namespace firkin
