// What the optimisers of LibTorch keep: options per group of parameters, and a state per parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace firkin {

// Stands for the options of a ForeignOptimizer.
struct ForeignOptions final : torch::optim::OptimizerCloneableOptions<ForeignOptions> {};

// An optimiser of Python, which keeps its options and states there. Its step() steps only parameters with a gradient,
// and takes care of options that have changed, as StepInParts does for LibTorch's optimisers.
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
};

// Copies options in place, because the program may hold references to them. For an optimiser that LibTorch does not
// have, copies only the learning rate.
void assign(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from);

// A step of an optimiser that is made in parts: each run() steps the parameters that have a gradient then. All parts
// use the options from before the first, even if a schedule has changed them since. The optimiser must outlive this.
class StepInParts {
 public:
  explicit StepInParts(torch::optim::Optimizer& optimizer);

  void run();
  const torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  bool has_run() const { return has_run_; }

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> before_;  // per group of parameters
  bool has_run_ = false;
};

// References into a state of SGD, Adam, AdamW, RMSprop or Adagrad; none for another optimiser's. Tensors have the
// parameter's shape. Those that the optimiser has not made, or does not need with its options, are undefined.
struct OptimizerStateFields {
  int64_t* step = nullptr;  // null: the state has no count of steps
  std::vector<std::pair<const char*, at::Tensor*>> tensors = {};
};
OptimizerStateFields fields_of(torch::optim::OptimizerParamState& state);

// An empty state for the optimiser that has these options; null for an optimiser other than these five.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(const torch::optim::OptimizerOptions& options);

}  // namespace firkin
