// AdamW as language models are trained with: norms' gains and all biases do not decay; in low precision, steps are taken on copies of the
// parameters in float32.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

namespace firkin {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;   // of parameters of two dimensions or more; the others have none
  bool master_weights = true;  // of parameters that are not in float32 or float64
};

// AdamW (Loshchilov and Hutter 2019). With master weights each parameter has a copy in float32 and moments in float32: a step converts
// the gradient, updates the copy, and rounds it into the parameter (Micikevicius et al. 2018, "Mixed precision training", 3.1). Without,
// an update that is less than half of the distance to the parameter's next value is lost: in bfloat16, less than 1/512 of the parameter.
//
// The masters are those of the parameters when it is made. It keeps its state per parameter, and leaves those without gradient alone.
class TrainingAdamW : public torch::optim::AdamW {
 public:
  // groups: of parameters, with AdamWOptions.
  TrainingAdamW(std::vector<torch::optim::OptimizerParamGroup> groups, bool master_weights);

  at::Tensor step(LossClosure closure = nullptr) override;

  // What a parameter's steps are taken on: its master, or itself.
  at::Tensor stepped(const at::Tensor& parameter) const;
  // Sets a master, and rounds it into its parameter. Without masters: sets the parameter.
  void set_stepped(const at::Tensor& parameter, const at::Tensor& value);
  bool has_master(const at::Tensor& parameter) const;

  // Null before the parameter's first step.
  torch::optim::AdamWParamState* state_of(const at::Tensor& parameter);
  void set_state(const at::Tensor& parameter, std::unique_ptr<torch::optim::AdamWParamState> state);

 private:
  // An optimiser of its own for each: then one gradient at a time is there in float32. Of a parameter that is precise enough, itself.
  struct Master {
    at::Tensor weights;
    std::unique_ptr<torch::optim::AdamW> optimizer;
  };

  torch::optim::AdamW& optimizer_of(const at::Tensor& parameter);

  std::unordered_map<void*, Master> masters_;  // by parameter
};

// Over the module's trainable parameters.
std::unique_ptr<TrainingAdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings);

void set_learning_rate(torch::optim::AdamW& optimizer, double learning_rate);

}  // namespace firkin
