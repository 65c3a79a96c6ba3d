// Least squares with coefficients of at least 0, for a handful of terms.
#pragma once

#include <vector>

namespace firkin {

// The x >= 0 that minimises the sum over equations of (equation . x - 1)^2. Exact: every subset of the terms is solved without the bound,
// and the best solution that respects it is taken. At most 8 terms. A term that no equation determines gets 0.
std::vector<double> fit_nonnegative_to_one(const std::vector<std::vector<double>>& equations);

}  // namespace firkin
