// The parameters of a module that data-parallel training synchronises, and a callback when one receives its gradient.
//
//   ParameterHooks hooks(trainable_parameters(net), [](size_t parameter) { ++gradients[parameter]; });
//   loss.backward();  // calls it for every gradient
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

// All parameters, under each of their names. A computed tensor (weight dropping, normalised weights) is not a
// parameter, even in a parameter's place.
std::vector<NamedTensor> parameters_in(const torch::nn::Module& module);

// Trainable parameters in registration order; a tensor registered under several names (tied weights) once, under its
// first.
std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module);

// The tensors alone, in the same order.
std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named);

// Whether the parameter has ParameterHooks.
bool is_hooked(const at::Tensor& parameter);

// Throws InputError naming the first parameter that has ParameterHooks already.
void check_unhooked(const std::vector<NamedTensor>& parameters);

// Hooks that run after the nodes that accumulate gradients, as in PyTorch 2.13's c10d::Reducer. The destructor removes
// them. Other hooks stay in place and run first, both those on a parameter's gradient and those after its accumulation.
//
// A parameter may get a new node, for example by torch::load(). The next backward that reaches it moves the hook there.
// If its dtype, device or shape has changed, that backward() throws a RuntimeError naming the parameter.
class ParameterHooks {
 public:
  // on_gradient: receives the index into `parameters`, on the thread that runs backward. Throws like check_unhooked().
  ParameterHooks(std::vector<NamedTensor> parameters, std::function<void(size_t)> on_gradient);
  ~ParameterHooks();
  ParameterHooks(const ParameterHooks&) = delete;
  ParameterHooks& operator=(const ParameterHooks&) = delete;

  // The nodes that accumulate the parameters' gradients now.
  std::vector<const torch::autograd::Node*> nodes() const;

 private:
  struct Watched;

  std::vector<std::unique_ptr<Watched>> watched_;
};

}  // namespace firkin
