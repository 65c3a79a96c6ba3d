// Calls back when autograd has accumulated a parameter's gradient.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Throws InputError naming the first parameter that has a post-accumulate-gradient hook already: autograd keeps one.
void check_unhooked(const std::vector<NamedTensor>& parameters);

// Holds one post-accumulate-gradient hook per parameter; the destructor removes them.
class ParameterHooks {
 public:
  // on_gradient: takes the index into `parameters`; called on the thread that runs backward.
  // Throws as check_unhooked() does.
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
