// When each gradient became ready, as a section of results.json.
#pragma once

#include <optional>
#include <vector>

#include "firkin/plan/tensor_profile.h"
#include "results/field.h"

namespace firkin {

struct ProfileSection {
  TensorProfile tensors;
  std::optional<double> bare_backward_s = {};    // without hooks
  std::optional<double> hook_perturbation = {};  // what looking on cost, as a fraction
  std::optional<Interval> hook_perturbation_ci = {};
};

// Sets what looking on cost and what backward takes without it, from pairs of backward passes with hooks and without: seconds.
void add_bare_backward(const std::vector<double>& hooked_s, const std::vector<double>& bare_s, ProfileSection& profile);

// A backward pass, wherever results.json states one.
inline constexpr const char* kBackwardKey = "backward_s";
// A forward pass.
inline constexpr const char* kForwardKey = "forward_s";

nlohmann::json profile_json(const ProfileSection& profile);

// Throws FieldError at the place where a rule of check_profile() is broken.
ProfileSection read_profile(const JsonFields& fields);

// One row per tensor, with the bytes that are ready so far.
Table profile_table(const TensorProfile& profile);

}  // namespace firkin
