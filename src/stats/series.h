// What several estimates of stats/ are made of. Internal to it.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace firkin {

// The medians of at most `most` stretches of neighbours, of equal length but for the last; of a series that is no longer, the series.
std::vector<double> medians_of_stretches(std::span<const double> series, size_t most);

// The means of every two values, each with itself as well: their median is Hodges and Lehmann's estimate (1963) of the middle.
std::vector<double> pairwise_means(std::span<const double> values);

}  // namespace firkin
