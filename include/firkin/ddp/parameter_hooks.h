// Calls back when autograd has accumulated a parameter's gradient.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Holds one post-accumulate-gradient hook per parameter; the destructor removes them.
class ParameterHooks {
 public:
  // on_gradient: takes the index into `parameters`; called on the thread that runs backward.
  // Throws InputError naming the first parameter that has such a hook already: autograd keeps one.
  ParameterHooks(std::vector<NamedTensor> parameters, std::function<void(size_t)> on_gradient);
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

 private:
  struct Hook;

  std::vector<NamedTensor> parameters_;
  std::function<void(size_t)> on_gradient_;
};

}  // namespace firkin
