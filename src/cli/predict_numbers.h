// Figures of a prediction that its JSON and its text share.
#pragma once

#include <algorithm>
#include <numeric>

#include "firkin/base/units.h"
#include "predict_result.h"

namespace firkin::cli {

inline int64_t gradient_bytes(const PredictResult& result) {
  return std::accumulate(result.profile.bytes.begin(), result.profile.bytes.end(), int64_t{0});
}

// The best plan's advantage, as a fraction of the best uniform cap's time. At least 0: a plan with fewer buckets may be slower by less than
// the search's tolerance, and then it is taken for equal.
inline double plan_gain(const PredictResult& result) {
  return std::max(0.0, 1 - result.best_plan.timeline.end_s / result.best_uniform.timeline.end_s);
}

// Time lost against the best plan, as a fraction of its time; at least 0 for the same reason.
inline double regret_of(const Baseline& baseline) {
  return std::max(0.0, baseline.regret);
}

}  // namespace firkin::cli
