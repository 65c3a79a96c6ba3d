// What ranks must agree on, or know of each other.
#pragma once

#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// Element by element, over the ranks. Every rank gives as many values, and gets the same result. Collective.
std::vector<double> slowest_rank(const ProcessGroup& group, const std::vector<double>& values);
double sum_over_ranks(const ProcessGroup& group, double value);

// Rank 0's value, on every rank: what follows from a clock must be decided once. Collective.
double of_rank_0(const ProcessGroup& group, double value);

}  // namespace firkin
