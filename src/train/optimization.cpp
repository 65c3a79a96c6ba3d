#include "train/optimization.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "firkin/base/error.h"

#include <torch/csrc/autograd/autograd.h>

namespace firkin {
namespace {

std::unique_ptr<torch::optim::AdamWOptions> options_with(const AdamWSettings& settings, double weight_decay) {
  auto options = std::make_unique<torch::optim::AdamWOptions>();
  options->betas({settings.beta1, settings.beta2}).eps(settings.epsilon).weight_decay(weight_decay);
  return options;
}

}  // namespace

TrainingAdamW::TrainingAdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, bool master_weights) : AdamW(groups) {
  if (!master_weights) return;
  for (const torch::optim::OptimizerParamGroup& group : param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (is_low_precision(parameter)) masters_.emplace(parameter.unsafeGetTensorImpl(), parameter.detach().to(at::kFloat));
    }
  }
}

at::Tensor TrainingAdamW::step(LossClosure closure) {
  if (masters_.empty()) return AdamW::step(std::move(closure));
  if (closure) throw RuntimeError("step() got a closure; expected none with master weights");
  const at::NoGradGuard no_grad;
  for (torch::optim::OptimizerParamGroup& group : param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      const at::Tensor weights = stepped(parameter).detach();
      weights.mutable_grad() = parameter.grad().to(weights.scalar_type());
      std::vector<torch::optim::OptimizerParamGroup> own;
      own.emplace_back(std::vector{weights}, group.options().clone());
      AdamW one(own);
      auto& kept = state()[parameter.unsafeGetTensorImpl()];
      if (kept != nullptr) one.state()[weights.unsafeGetTensorImpl()] = std::move(kept);
      one.step();
      kept = std::move(one.state()[weights.unsafeGetTensorImpl()]);
      if (has_master(parameter)) parameter.copy_(weights);
    }
  }
  return {};
}

at::Tensor TrainingAdamW::stepped(const at::Tensor& parameter) const {
  const auto found = masters_.find(parameter.unsafeGetTensorImpl());
  return found == masters_.end() ? parameter : found->second;
}

void TrainingAdamW::set_stepped(const at::Tensor& parameter, const at::Tensor& value) {
  const at::NoGradGuard no_grad;
  stepped(parameter).copy_(value);
  if (has_master(parameter)) parameter.detach().copy_(stepped(parameter));
}

bool TrainingAdamW::has_master(const at::Tensor& parameter) const {
  return masters_.contains(parameter.unsafeGetTensorImpl());
}

torch::optim::AdamWParamState* TrainingAdamW::state_of(const at::Tensor& parameter) {
  const auto found = state().find(parameter.unsafeGetTensorImpl());
  return found == state().end() ? nullptr : static_cast<torch::optim::AdamWParamState*>(found->second.get());
}

void TrainingAdamW::set_state(const at::Tensor& parameter, std::unique_ptr<torch::optim::AdamWParamState> state) {
  this->state()[parameter.unsafeGetTensorImpl()] = std::move(state);
}

std::unique_ptr<TrainingAdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings,
                                          const std::vector<NamedTensor>& parts) {
  std::vector<at::Tensor> decaying;
  std::vector<at::Tensor> others;
  const std::vector<NamedTensor> parameters = trainable_parameters(module);
  for (size_t i = 0; i < parameters.size(); ++i) {
    (parameters[i].tensor.dim() >= 2 ? decaying : others).push_back(parts.empty() ? parameters[i].tensor : parts[i].tensor);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!decaying.empty()) groups.emplace_back(std::move(decaying), options_with(settings, settings.weight_decay));
  if (!others.empty()) groups.emplace_back(std::move(others), options_with(settings, 0));
  return std::make_unique<TrainingAdamW>(std::move(groups), settings.master_weights);
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double learning_rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(learning_rate);
}

double learning_rate(const Schedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) return schedule.peak * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup_steps);
  if (schedule.kind == ScheduleKind::kConstant) return schedule.peak;
  const int64_t way = std::max<int64_t>(1, schedule.steps - 1 - schedule.warmup_steps);
  const double gone = std::clamp(static_cast<double>(step - schedule.warmup_steps) / static_cast<double>(way), 0.0, 1.0);
  const double height = schedule.kind == ScheduleKind::kLinear ? 1 - gone : (1 + std::cos(std::numbers::pi * gone)) / 2;
  return schedule.peak * (schedule.final_share + (1 - schedule.final_share) * height);
}

ScheduleKind schedule_from_name(std::string_view name) {
  if (name == "constant") return ScheduleKind::kConstant;
  if (name == "linear") return ScheduleKind::kLinear;
  if (name == "cosine") return ScheduleKind::kCosine;
  throw InputError(fmt::format("unknown schedule '{}'; expected constant, linear or cosine", name));
}

namespace {

enum class Found { kNothing, kValue, kGradient };

struct Finding {
  Found what = Found::kNothing;
  size_t parameter = 0;  // in registration order
};

bool is_finite(const at::Tensor& tensor) {
  return !tensor.defined() || at::isfinite(tensor).all().item<bool>();
}

Finding find_on_this_rank(const std::vector<at::Tensor>& parameters, const std::vector<std::function<at::Tensor()>>& losses) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_finite(parameters[i].detach())) return {Found::kValue, i};
  }
  for (const auto& loss : losses) {
    const auto gradients = torch::autograd::grad({loss()}, parameters, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                                 /*allow_unused=*/true);
    for (size_t i = gradients.size(); i-- > 0;) {
      if (!is_finite(gradients[i])) return {Found::kGradient, i};
    }
  }
  return {};
}

}  // namespace

std::string describe_nonfinite(const ProcessGroup& group, const torch::nn::Module& module,
                               const std::vector<std::function<at::Tensor()>>& losses, const std::vector<double>& rank_losses) {
  const std::vector<NamedTensor> parameters = trainable_parameters(module);
  const Finding ours = find_on_this_rank(tensors_of(parameters), losses);
  const auto by_rank = all_gather(group, {static_cast<double>(ours.what), static_cast<double>(ours.parameter)});
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto what = static_cast<Found>(by_rank[rank][0]);
    const double loss = rank_losses[rank];
    if (what == Found::kNothing && std::isfinite(loss)) continue;
    const std::string where = what == Found::kNothing
                                  ? ""
                                  : fmt::format("; the first that is not finite: {}{}", what == Found::kValue ? "" : "the gradient of ",
                                                parameters[static_cast<size_t>(by_rank[rank][1])].name);
    return fmt::format("rank {}: loss {:.6g}{}", rank, loss, where);
  }
  return "gradients are finite on every rank, but their sum is not";
}

}  // namespace firkin
