#include "firkin/ddp/parameter_hooks.h"

#include <fmt/format.h>

#include <memory>

#include "firkin/base/error.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

namespace firkin {

struct ParameterHooks::Hook : torch::autograd::PostAccumulateGradHook {
  Hook(const ParameterHooks& owner_in, size_t parameter_in) : owner(owner_in), parameter(parameter_in) {}
  void operator()(const torch::autograd::Variable& /*tensor*/) override { owner.on_gradient_(parameter); }
  const ParameterHooks& owner;
  size_t parameter;
};

void check_unhooked(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    if (torch::autograd::impl::post_acc_grad_hooks(parameter.tensor) == nullptr) continue;
    throw InputError(
        fmt::format("DataParallel: {} has a post-accumulate-gradient hook already; is the module wrapped twice?", parameter.name));
  }
}

ParameterHooks::ParameterHooks(std::vector<NamedTensor> parameters, std::function<void(size_t)> on_gradient)
    : parameters_(std::move(parameters)), on_gradient_(std::move(on_gradient)) {
  check_unhooked(parameters_);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameters_[i].tensor, std::make_unique<Hook>(*this, i));
  }
}

ParameterHooks::~ParameterHooks() {
  for (const NamedTensor& parameter : parameters_) {
    auto& hook = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
    const auto* ours = dynamic_cast<Hook*>(hook.get());
    if (ours != nullptr && &ours->owner == this) hook.reset();
  }
}

}  // namespace firkin
