// How parameters are updated: AdamW, the schedule of its learning rate, and what to do about numbers that are not finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

namespace firkin {

// Of AdamW as language models are trained with: norms' gains and all biases do not decay; in low precision, steps are taken on copies of
// the parameters in float32.
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
  TrainingAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, bool master_weights);

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
  std::unordered_map<void*, at::Tensor> masters_;  // by parameter; a step takes one after another, so one gradient at a time is in float32
};

// Over the module's trainable parameters, or over the parts of them, in their order, that a ShardedOptimizer steps.
std::unique_ptr<TrainingAdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings,
                                          const std::vector<NamedTensor>& parts = {});

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate);

// The learning rate of every step: a warm-up, then a way down.
//
//   learning_rate({.kind = ScheduleKind::kCosine, .peak = 1e-3, .warmup_steps = 20, .steps = 500}, step);

enum class ScheduleKind {
  kConstant,
  kLinear,
  kCosine,  // half a period (Loshchilov and Hutter 2017, SGDR, without restarts)
};

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double peak = 1e-3;
  int64_t warmup_steps = 0;  // from peak / warmup_steps up to the peak, in equal parts
  int64_t steps = 1;         // of the whole training
  double final_share = 0.1;  // of the peak, in the last step
};

// Of step 0, 1, ...; beyond the last step it stays as there.
double learning_rate(const Schedule& schedule, int64_t step);

// "constant", "linear", "cosine". Throws InputError that lists them.
ScheduleKind schedule_from_name(std::string_view name);

// Where a loss that is no finite number came from. Looks for what is not finite on this rank: first among the parameters' values, then
// among the gradients of `losses` (the rank's micro-batches, computed anew, which touches neither grad() nor the hooks of DataParallel), in
// the order of backward. Gathers what each rank has found, and returns one line, the same on all: "rank 1: loss nan; the first that is not
// finite: the gradient of lm_head.weight". Collective.
//
// rank_losses: of the step, by rank.
std::string describe_nonfinite(const ProcessGroup& group, const torch::nn::Module& module,
                               const std::vector<std::function<at::Tensor()>>& losses, const std::vector<double>& rank_losses);

}  // namespace firkin
