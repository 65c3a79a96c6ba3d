// Steps of optimisers that are still owed to parameters whose gradients are on their way.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <vector>

#include <torch/optim/optimizer.h>

namespace firkin {

// Options that are kept elsewhere than in LibTorch's classes: a Python optimiser's.
class ForeignOptions : public torch::optim::OptimizerOptions {
 public:
  // from: a clone() of these.
  virtual void assign(const torch::optim::OptimizerOptions& from) = 0;
};

// The optimisers of LibTorch leave a parameter without gradient alone, and keep their state per parameter. So pay() lets them see the
// gradients of a few parameters and nothing else: what they then do to these is what one step over all would have done. Not thread-safe.
class OwedSteps {
 public:
  // From now on until clear() a step of this optimiser is owed, with the options that it has now: a schedule may change them before the
  // last gradient has come. The optimiser must live until then.
  void add(torch::optim::Optimizer& optimizer);
  bool empty() const { return steps_.empty(); }
  void clear() { steps_.clear(); }

  // Steps all optimisers, in the order in which they were added, with no gradient defined but those that `set_gradients` sets for these
  // parameters. Afterwards those are undefined, and all others as before.
  void pay(const std::vector<at::Tensor>& parameters, c10::function_ref<void()> set_gradients);

 private:
  struct Step {
    torch::optim::Optimizer* optimizer;
    std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options;  // per group of parameters
  };

  std::vector<Step> steps_;
};

// Throws InputError for an optimiser that cannot step a part of its parameters: L-BFGS.
void check_steps_partially(const torch::optim::Optimizer& optimizer);

}  // namespace firkin
