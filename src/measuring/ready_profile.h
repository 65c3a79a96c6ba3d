// When each gradient became ready, as steps showed it: what whoever watched them makes of the times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/tensor_profile.h"
#include "firkin/stats/interval.h"

namespace firkin {

struct MeasuredProfile {
  TensorProfile tensors;
  std::optional<double> bare_backward_s = {};    // without hooks
  std::optional<double> hook_perturbation = {};  // what looking on cost, as a fraction
  std::optional<Interval> hook_perturbation_ci = {};
};

// Sets what looking on cost and what backward takes without it, from pairs of backward passes with hooks and without: seconds.
void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, MeasuredProfile& profile);

// The profile of steps that were watched. names, bytes: per parameter. order: the gradient-ready order, as their indices. hooked_s: [step],
// seconds until the end of backward, then until each parameter was ready; bare_s: until the end of as many backward passes without hooks.
MeasuredProfile profile_of_steps(const std::vector<std::string>& names, const std::vector<int64_t>& bytes,
                                 const std::vector<int64_t>& order, const std::vector<std::vector<double>>& hooked_s,
                                 const std::vector<double>& bare_s);

// Indices by ascending time; equal times in their own order.
std::vector<int64_t> order_of_times(const std::vector<double>& times);

// The profile that the performance model takes, in an order that need not be that of the times: a tensor counts as ready when those before
// it are, for so it is launched. names, bytes, ready_s: per parameter, seconds from the start of backward; `order` has their indices.
TensorProfile profile_in_order(const std::vector<std::string>& names, const std::vector<int64_t>& bytes, const std::vector<int64_t>& order,
                               const std::vector<double>& ready_s, double backward_s);

}  // namespace firkin
