// From times at which gradients were ready to the profile that the performance model takes.
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/ddp/module_parameters.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

// Per column of rows of equal length.
std::vector<double> column_medians(const std::vector<std::vector<double>>& rows);

// Indices by ascending time; equal times in their own order.
std::vector<int64_t> order_of_times(const std::vector<double>& times);

// ready_s: per parameter, seconds from the start of backward. Both without the forward pass.
TensorProfile profile_in_ready_order(const std::vector<NamedTensor>& parameters, const std::vector<double>& ready_s, double backward_s);

// In an order that need not be that of the times: a tensor counts as ready when those before it are, for so it is launched.
TensorProfile profile_in_order(const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s);

}  // namespace firkin
