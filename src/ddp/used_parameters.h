// Which parameters this rank uses in a step.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "pipe.h"
#include "step_setup.h"

namespace firkin {

// Not thread-safe.
class UsedParameters {
 public:
  explicit UsedParameters(size_t parameters = 0) : arrived_(parameters, false), used_(parameters, false) {}

  // A gradient has arrived, synchronised or not.
  void record_arrival(size_t parameter) { arrived_[parameter] = true; }
  // Backward will not reach the parameter, which adds to the step only what it holds already.
  void skip(size_t parameter, bool has_gradient) { used_[parameter] = has_gradient; }
  // This rank adds nothing to the step.
  void use_none() { used_.assign(used_.size(), false); }
  // Backward is over: records that every parameter with a gradient is used. Returns why the step fails; nothing if all
  // parameters are used, or need not be. has_others: the module now trains other parameters than the setup's.
  std::optional<std::string> record_used(const StepSetup& setup, const GradientPipe& pipe, bool has_others);
  void end_step();

  // Per parameter: whether it has something to add to the step.
  const std::vector<bool>& used() const { return used_; }

 private:
  bool has_gradient(const StepSetup& setup, const GradientPipe& pipe, size_t parameter) const;
  std::vector<std::string> without_gradient(const StepSetup& setup, const GradientPipe& pipe, bool has_others) const;

  std::vector<bool> arrived_;  // by parameter: a gradient has, since the last step ended
  std::vector<bool> used_;     // by parameter
};

}  // namespace firkin
