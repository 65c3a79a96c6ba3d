#include "train/training_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <memory>

#include "firkin/base/error.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {
namespace {

constexpr const char* kReadyOrder = "ready_order";
constexpr const char* kMaster = "master/";
constexpr const char* kOptimizerSteps = "optimizer_steps";  // of each trainable parameter

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors module_tensors(const torch::nn::Module& module) {
  NamedTensors result;
  for (const auto& item : module.named_parameters()) result.emplace_back("parameter/" + item.key(), item.value());
  for (const auto& item : module.named_buffers()) result.emplace_back("buffer/" + item.key(), item.value());
  return result;
}

at::Tensor copied(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true).contiguous();
}

const at::Tensor& tensor_of(const Checkpoint& checkpoint, const std::string& name) {
  for (const auto& [key, tensor] : checkpoint.tensors) {
    if (key == name) return tensor;
  }
  throw InputError(fmt::format("the checkpoint of step {} has no {}", checkpoint.head.step, name));
}

}  // namespace

NamedTensors copy_of_training(Trainer& trainer) {
  const at::NoGradGuard no_grad;
  const torch::nn::Module& module = trainer.module();
  NamedTensors tensors;
  for (const auto& [name, tensor] : module_tensors(module)) tensors.emplace_back(name, copied(tensor));
  std::vector<int64_t> steps;
  for (const auto& [name, parameter] : trainable_parameters(module)) {
    TrainingAdamW& optimizer = trainer.optimizer();
    if (optimizer.has_master(parameter)) tensors.emplace_back(kMaster + name, copied(optimizer.stepped(parameter)));
    const torch::optim::AdamWParamState* state = optimizer.state_of(parameter);
    steps.push_back(state != nullptr ? state->step() : 0);
    if (state == nullptr) continue;
    tensors.emplace_back("exp_avg/" + name, copied(state->exp_avg()));
    tensors.emplace_back("exp_avg_sq/" + name, copied(state->exp_avg_sq()));
  }
  tensors.emplace_back(kOptimizerSteps, at::tensor(steps, at::kLong));
  tensors.emplace_back(kReadyOrder, at::tensor(trainer.data_parallel().ready_order(), at::kLong));
  return tensors;
}

void load_parameters(const Checkpoint& checkpoint, torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  for (auto& [name, tensor] : module_tensors(module)) {
    const at::Tensor& stored = tensor_of(checkpoint, name);
    if (stored.sizes() != tensor.sizes()) {
      throw InputError(fmt::format("the checkpoint of step {}: {} has {} elements; expected {}", checkpoint.head.step, name, stored.numel(),
                                   tensor.numel()));
    }
    tensor.copy_(stored);
  }
}

Continuation share_continuation(const ProcessGroup& group, const torch::nn::Module& module, const Checkpoint* checkpoint) {
  const auto parameters = static_cast<int64_t>(trainable_parameters(module).size());
  const at::Tensor shared = at::zeros({parameters + 1}, at::kLong);
  if (checkpoint != nullptr) {
    shared[0] = checkpoint->head.step;
    shared.narrow(0, 1, parameters).copy_(tensor_of(*checkpoint, kReadyOrder));
  }
  broadcast(group, {shared});
  const int64_t* values = shared.const_data_ptr<int64_t>();
  return {.step = values[0], .ready_order = {values + 1, values + 1 + parameters}};
}

void continue_training(Trainer& trainer, const Continuation& continuation, const Checkpoint* checkpoint) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedTensor> parameters = trainable_parameters(trainer.module());
  const at::Tensor steps = at::zeros({static_cast<int64_t>(parameters.size())}, at::kLong);
  if (checkpoint != nullptr) steps.copy_(tensor_of(*checkpoint, kOptimizerSteps));
  broadcast(trainer.group(), {steps});
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, parameter] = parameters[i];
    const auto shared_tensor = [&, &name = name, &parameter = parameter](const char* kind) {
      const at::Tensor shared = at::zeros_like(trainer.optimizer().stepped(parameter).detach(), at::MemoryFormat::Preserve);
      if (checkpoint != nullptr) shared.copy_(tensor_of(*checkpoint, kind + name));
      broadcast(trainer.group(), {shared});
      return shared;
    };
    if (trainer.optimizer().has_master(parameter)) trainer.optimizer().set_stepped(parameter, shared_tensor(kMaster));
    const int64_t step = steps[static_cast<int64_t>(i)].item<int64_t>();
    if (step == 0) continue;
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(step);
    state->exp_avg(shared_tensor("exp_avg/"));
    state->exp_avg_sq(shared_tensor("exp_avg_sq/"));
    trainer.optimizer().set_state(parameter, std::move(state));
  }
  trainer.continue_at(continuation.step);
}

}  // namespace firkin
