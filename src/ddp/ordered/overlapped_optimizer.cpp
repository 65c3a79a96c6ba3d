#include "firkin/ddp/overlapped_optimizer.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <chrono>
#include <exception>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "ordered.h"

#include <torch/nn/utils/clip_grad.h>

namespace firkin {
namespace {

using torch::optim::OptimizerOptions;

std::vector<std::unique_ptr<OptimizerOptions>> options_of(const torch::optim::Optimizer& optimizer) {
  std::vector<std::unique_ptr<OptimizerOptions>> options;
  for (const auto& group : optimizer.param_groups()) options.push_back(group.options().clone());
  return options;
}

void set_options(torch::optim::Optimizer& optimizer, const std::vector<std::unique_ptr<OptimizerOptions>>& options) {
  for (size_t i = 0; i < options.size(); ++i) assign(optimizer.param_groups()[i].options(), *options[i]);
}

}  // namespace

// Scales as clip_grad_norm_() does; nothing waits for a device.
void clip_each(const torch::optim::Optimizer& optimizer, double max_norm) {
  if (max_norm == 0) return;
  constexpr double kEpsilon = 1e-6;
  const at::NoGradGuard no_grad;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined()) gradient.mul_((max_norm / (gradient.norm() + kEpsilon)).clamp_max(1));
    }
  }
}

void DeferredSteps::add(torch::optim::Optimizer& optimizer, double clip_each_norm) {
  steps_.push_back({.optimizer = &optimizer, .options = options_of(optimizer), .clip_each_norm = clip_each_norm});
}

void DeferredSteps::run(const std::vector<at::Tensor>& parameters, c10::function_ref<void()> set_gradients) {
  std::vector<std::pair<at::Tensor, at::Tensor>> hidden;  // parameters and their gradients
  const auto restore = c10::make_scope_exit([&hidden] {
    for (auto& [parameter, gradient] : hidden) parameter.mutable_grad() = std::move(gradient);
  });
  for (const Step& step : steps_) {
    for (const auto& group : step.optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        if (parameter.grad().defined()) hidden.emplace_back(parameter, std::exchange(parameter.mutable_grad(), {}));
      }
    }
  }
  set_gradients();
  for (const Step& step : steps_) {
    const auto current = options_of(*step.optimizer);
    set_options(*step.optimizer, step.options);
    clip_each(*step.optimizer, step.clip_each_norm);
    step.optimizer->step();
    set_options(*step.optimizer, current);
  }
  for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
}

OverlappedOptimizer::OverlappedOptimizer(DataParallel& ddp, torch::optim::Optimizer& optimizer, OverlappedOptions options)
    : ddp_(&ddp), optimizer_(&optimizer), options_(options) {
  if (!(options_.clip_norm >= 0)) throw InputError("OverlappedOptions: clip_norm is negative; expected 0 (no clipping) or more");
  if (!(options_.clip_each_norm >= 0)) throw InputError("OverlappedOptions: clip_each_norm is negative; expected 0 (no clipping) or more");
  if (options_.clip_norm > 0 && options_.clip_each_norm > 0)
    throw InputError("OverlappedOptions: clip_norm and clip_each_norm are both set; expected one");
  ddp_->audit_optimizer(optimizer);
}

OverlappedOptimizer::~OverlappedOptimizer() {
  try {
    ddp_->forget_audited(*optimizer_);
    drain();
  } catch (const std::exception& error) {
    TORCH_WARN("OverlappedOptimizer: cannot complete the last step: ", error.what());
  }
}

void OverlappedOptimizer::step() {
  if (options_.clip_norm > 0) clip_gradients(options_.clip_norm);
  ddp_->step(*optimizer_, options_.clip_each_norm);
}

void OverlappedOptimizer::zero_grad(bool set_to_none) {
  drain();
  optimizer_->zero_grad(set_to_none);
}

torch::optim::Optimizer& OverlappedOptimizer::optimizer() {
  drain();
  return *optimizer_;
}

double OverlappedOptimizer::clip_gradients(double max_norm) {
  const auto started = std::chrono::steady_clock::now();
  drain();
  const double waited_s = seconds_since(started);
  if (waited_s > 0.001) {
    TORCH_WARN_ONCE("clip_gradients() waits for all gradients (here for ", format_seconds(waited_s),
                    "), so the strategy ordered overlaps nothing with the next forward");
  }
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_->param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

}  // namespace firkin
