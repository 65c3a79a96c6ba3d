// The parameters of a module that data-parallel training synchronises, and a call when one of them has got its gradient.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace torch::autograd {
struct Node;
}

namespace firkin {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Trainable parameters in registration order; a tensor registered under several names (tied weights) once, under its first.
std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module);

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

  // The nodes that accumulate the parameters' gradients.
  std::vector<const torch::autograd::Node*> nodes() const;

 private:
  class Watched;

  std::vector<std::unique_ptr<Watched>> watched_;
};

}  // namespace firkin
