// Makes a profile, with the time at which each gradient became ready, from the times of watched steps.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/tensor_profile.h"

namespace firkin {

struct MeasuredProfile {
  TensorProfile tensors;
  std::optional<double> bare_backward_s = {};    // backward without hooks
  std::optional<double> hook_perturbation = {};  // what the hooks cost, as a fraction of backward
};

// Sets hook_perturbation and bare_backward_s, from pairs of backward passes with hooks and without, in seconds.
void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, MeasuredProfile& profile);

// The profile of watched steps. names, bytes: per parameter. order: the gradient-ready order, as indices of parameters.
// hooked_s: for each step the seconds to the end of backward, then to each parameter's readiness. bare_s: the seconds
// of as many backward passes without hooks.
MeasuredProfile profile_of_steps(const std::vector<std::string>& names, const std::vector<int64_t>& bytes,
                                 const std::vector<int64_t>& order, const std::vector<std::vector<double>>& hooked_s,
                                 const std::vector<double>& bare_s);

// Indices by ascending time; equal times in their own order.
std::vector<int64_t> order_of_times(const std::vector<double>& times);

// A profile for the performance model. Its order need not be that of the times: gradients are launched in this order,
// so a tensor counts as ready once all before it are. names, bytes, ready_s: per parameter, in seconds from the start
// of backward. order: indices of parameters.
TensorProfile profile_in_order(const std::vector<std::string>& names, const std::vector<int64_t>& bytes, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s);

}  // namespace firkin
