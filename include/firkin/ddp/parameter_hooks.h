// Calls back when autograd has accumulated a parameter's gradient.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Throws InputError naming the first parameter that ParameterHooks watches already.
void check_unhooked(const std::vector<NamedTensor>& parameters);

// Hooks behind the nodes that accumulate gradients, as c10d::Reducer has them; the destructor removes them. Others' hooks are left alone,
// and run before: those on a parameter's gradient, and those after its accumulation.
//
// A parameter whose dtype, device or shape changes gets another such node, without a hook: then backward() throws a RuntimeError that names
// the parameter.
class ParameterHooks {
 public:
  // on_gradient: takes the index into `parameters`; called on the thread that runs backward.
  // Throws as check_unhooked() does.
  ParameterHooks(std::vector<NamedTensor> parameters, std::function<void(size_t)> on_gradient);
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

 private:
  class Watched;

  std::vector<std::unique_ptr<Watched>> watched_;
};

}  // namespace firkin
