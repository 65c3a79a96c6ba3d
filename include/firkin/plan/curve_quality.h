// How well a cost curve predicts a size that was not measured: leave each size out and predict it from the others.
#pragma once

#include <optional>
#include <vector>

#include "firkin/plan/cost_curve.h"

namespace firkin {

struct LeaveOneOut {
  double median_relative_error = 0;
  double largest_relative_error = 0;
  int64_t worst_bytes = 0;  // the size that is predicted worst
};

// Of the interpolation: every size but the smallest and the largest, which would be extrapolated. Repeated sizes are merged first.
// Nothing with fewer than three sizes. Throws InputError as CostCurve's constructor.
std::optional<LeaveOneOut> leave_one_out_of_curve(const std::vector<CostPoint>& points);

// Of the line alpha + bytes * beta: every size. Nothing with fewer than three.
std::optional<LeaveOneOut> leave_one_out_of_alpha_beta(const std::vector<CostPoint>& points);

}  // namespace firkin
