// What the optimisers of LibTorch keep: options per group of parameters, and a state per parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace firkin {

// The options of a ForeignOptimizer, which are not here.
struct ForeignOptions final : torch::optim::OptimizerCloneableOptions<ForeignOptions> {};

// An optimiser whose options and states are kept elsewhere: a Python optimiser. Its step() does what StepInParts does
// for others.
class ForeignOptimizer : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
};

// Copies in place, because the program may hold references to an optimiser's options. For an optimiser that LibTorch
// does not have, only the learning rate.
void assign(torch::optim::OptimizerOptions& to, const torch::optim::OptimizerOptions& from);

// A step of an optimiser over a few parameters at a time: those that have a gradient when run() is called. Every part is
// stepped with the options from before the first, whatever a schedule has made of them since. The optimiser must outlive
// it.
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

// References into a state of SGD, Adam, AdamW, RMSprop or Adagrad; empty for another optimiser's. Tensors have the
// parameter's shape; those that the optimiser has not made, or does not need with its options, are undefined.
struct OptimizerStateFields {
  int64_t* step = nullptr;  // null: it does not count steps
  std::vector<std::pair<const char*, at::Tensor*>> tensors = {};
};
OptimizerStateFields fields_of(torch::optim::OptimizerParamState& state);

// An empty state of the optimiser with these options; null unless it is one of these five.
std::unique_ptr<torch::optim::OptimizerParamState> make_state(const torch::optim::OptimizerOptions& options);

}  // namespace firkin
