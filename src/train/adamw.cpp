#include "train/adamw.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

std::unique_ptr<torch::optim::AdamWOptions> options_with(const AdamWSettings& settings, double weight_decay) {
  auto options = std::make_unique<torch::optim::AdamWOptions>();
  options->betas({settings.beta1, settings.beta2}).eps(settings.epsilon).weight_decay(weight_decay);
  return options;
}

bool is_low_precision(const at::Tensor& parameter) {
  return parameter.scalar_type() != at::kFloat && parameter.scalar_type() != at::kDouble;
}

}  // namespace

TrainingAdamW::TrainingAdamW(std::vector<torch::optim::OptimizerParamGroup> groups, bool master_weights) : AdamW(std::move(groups)) {
  const auto is_low = [](const auto& group) { return std::ranges::any_of(group.params(), is_low_precision); };
  if (!master_weights || std::ranges::none_of(param_groups(), is_low)) return;
  for (const torch::optim::OptimizerParamGroup& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      Master master{.weights = is_low_precision(parameter) ? parameter.detach().to(at::kFloat) : parameter.detach(), .optimizer = nullptr};
      std::vector<torch::optim::OptimizerParamGroup> own;
      own.emplace_back(std::vector{master.weights}, group.options().clone());
      master.optimizer = std::make_unique<torch::optim::AdamW>(std::move(own));
      masters_.emplace(parameter.unsafeGetTensorImpl(), std::move(master));
    }
  }
}

at::Tensor TrainingAdamW::step(LossClosure closure) {
  if (masters_.empty()) return AdamW::step(std::move(closure));
  if (closure) throw RuntimeError("a closure for a step on master weights; expected none");
  const at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      Master& master = masters_.at(parameter.unsafeGetTensorImpl());
      master.optimizer->param_groups()[0].set_options(group.options().clone());
      master.weights.mutable_grad() = parameter.grad().to(master.weights.scalar_type());
      master.optimizer->step();
      master.weights.mutable_grad().reset();
      parameter.copy_(master.weights);
    }
  }
  return {};
}

at::Tensor TrainingAdamW::stepped(const at::Tensor& parameter) const {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found == masters_.end() ? parameter : found->second.weights;
}

void TrainingAdamW::set_stepped(const at::Tensor& parameter, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  stepped(parameter).copy_(value);
  if (has_master(parameter)) parameter.detach().copy_(stepped(parameter));
}

bool TrainingAdamW::has_master(const at::Tensor& parameter) const {
  return stepped(parameter).scalar_type() != parameter.scalar_type();
}

torch::optim::AdamW& TrainingAdamW::optimizer_of(const at::Tensor& parameter) {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found == masters_.end() ? *this : *found->second.optimizer;
}

torch::optim::AdamWParamState* TrainingAdamW::state_of(const at::Tensor& parameter) {
  auto& states = optimizer_of(parameter).state();
  const auto found = states.find(stepped(parameter).unsafeGetTensorImpl());
  return found == states.end() ? nullptr : static_cast<torch::optim::AdamWParamState*>(found->second.get());
}

void TrainingAdamW::set_state(const at::Tensor& parameter, std::unique_ptr<torch::optim::AdamWParamState> state) {
  optimizer_of(parameter).state()[stepped(parameter).unsafeGetTensorImpl()] = std::move(state);
}

std::unique_ptr<TrainingAdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings) {
  std::vector<at::Tensor> decaying;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) (parameter.dim() >= 2 ? decaying : others).push_back(parameter);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!decaying.empty()) groups.emplace_back(std::move(decaying), options_with(settings, settings.weight_decay));
  if (!others.empty()) groups.emplace_back(std::move(others), options_with(settings, 0));
  return std::make_unique<TrainingAdamW>(std::move(groups), settings.master_weights);
}

void set_learning_rate(torch::optim::AdamW& optimizer, double learning_rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(learning_rate);
}

}  // namespace firkin
