// Outliers are flagged, never dropped: a slow step is a fact about the machine, and the median does not need it removed.
//
//   for (const size_t i : find_outliers(step_s)) fmt::print(stderr, "step {} took {} s\n", i, step_s[i]);
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace firkin {

// The modified z-score of Iglewicz and Hoaglin (1993), who recommend this threshold.
inline constexpr double kOutlierThreshold = 3.5;

// Indices, ascending, of the values whose distance from the median exceeds `threshold` standard deviations, where the standard deviation is
// 1.4826 times the median absolute deviation (what it is for normal noise) and so is not moved by the outliers themselves. When more than
// half of the values are equal, that deviation is zero, and 1.2533 times the mean absolute deviation takes its place; when all are equal
// there is no outlier.
//
// Throws std::invalid_argument when `values` is empty or holds a value that is not finite, or when threshold is not positive.
std::vector<size_t> find_outliers(std::span<const double> values, double threshold = kOutlierThreshold);

}  // namespace firkin
