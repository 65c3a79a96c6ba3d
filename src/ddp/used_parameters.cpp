#include "used_parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "follower.h"

namespace firkin {

// Whether the parameter has got a gradient since the last step. A gradient that an earlier step has left there, perhaps
// zeroed since, does not count.
bool UsedParameters::has_gradient(const StepSetup& setup, const GradientPipe& pipe, size_t parameter) const {
  if (pipe.is_placed(parameter)) return arrived_[parameter];
  return setup.parameters[parameter].tensor.grad().defined() && (arrived_[parameter] || !pipe.is_adopted(parameter));
}

std::optional<std::string> UsedParameters::record_used(const StepSetup& setup, const GradientPipe& pipe, bool has_others) {
  std::optional<std::string> failure;
  for (size_t i = 0; i < used_.size(); ++i) {
    const NamedTensor& parameter = setup.parameters[i];
    const bool is_gone = pipe.is_counted(i) && !pipe.is_placed(i) && !parameter.tensor.grad().defined();
    if (is_gone && !failure) failure = why_gradient_is_gone(parameter);
    used_[i] = has_gradient(setup, pipe, i) || used_[i] || parameter.tensor.grad().defined();
  }
  if (failure || setup.options.find_unused_parameters) return failure;
  const std::vector<std::string> missing = without_gradient(setup, pipe, has_others);
  if (missing.empty()) return std::nullopt;
  return fmt::format(
      "no gradient for {}; expected every trainable parameter to take part in the loss (or set "
      "find_unused_parameters)",
      fmt::join(missing, ", "));
}

std::vector<std::string> UsedParameters::without_gradient(const StepSetup& setup, const GradientPipe& pipe, bool has_others) const {
  std::vector<std::string> missing;
  if (!has_others) {
    for (size_t i = 0; i < used_.size(); ++i) {
      const NamedTensor& parameter = setup.parameters[i];
      if (!has_gradient(setup, pipe, i) && parameter.tensor.requires_grad()) missing.push_back(parameter.name);
    }
    return missing;
  }
  // The setup's parameters need no gradient if others have replaced them.
  for (const NamedTensor& parameter : trainable_parameters(*setup.module)) {
    const auto known = std::ranges::find_if(setup.parameters, [&](const auto& each) { return each.tensor.is_same(parameter.tensor); });
    const bool has = known == setup.parameters.end() ? parameter.tensor.grad().defined()
                                                     : has_gradient(setup, pipe, static_cast<size_t>(known - setup.parameters.begin()));
    if (!has) missing.push_back(parameter.name);
  }
  return missing;
}

void UsedParameters::end_step() {
  arrived_.assign(arrived_.size(), false);
  used_.assign(used_.size(), false);
}

}  // namespace firkin
