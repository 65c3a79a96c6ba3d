#include "firkin/ddp/module_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "firkin/base/error.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

// Behind the node that accumulates.
struct AccumulatedHook final : torch::autograd::FunctionPostHook {
  explicit AccumulatedHook(std::function<void()> call_in) : call(std::move(call_in)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (inputs[0].defined()) call();  // an undefined one is not accumulated
    return outputs;
  }
  std::function<void()> call;
};

// Before it. Unlike that node, it stays with the tensor.
struct ReplacedNodeHook final : torch::autograd::FunctionPreHook {
  ReplacedNodeHook(const NamedTensor& parameter_in, const Node* node_in) : parameter(parameter_in), node(node_in) {}
  variable_list operator()(const variable_list& gradients) override {
    if (torch::autograd::impl::try_get_grad_accumulator(parameter.tensor).get() == node) return gradients;
    throw RuntimeError(fmt::format(
        "DataParallel: the dtype, device or shape of {} changed after wrapping; expected the change before, or a new DataParallel",
        parameter.name));
  }
  const NamedTensor& parameter;
  const Node* node;
};

bool is_watched(const at::Tensor& tensor) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  if (node == nullptr) return false;
  return std::ranges::any_of(node->post_hooks(), [](const auto& hook) { return dynamic_cast<AccumulatedHook*>(hook.get()) != nullptr; });
}

}  // namespace

std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (tensor.requires_grad() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back({item.key(), tensor});
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

bool is_low_precision(const at::Tensor& parameter) {
  return parameter.is_floating_point() && static_cast<size_t>(parameter.element_size()) < sizeof(float);
}

void check_unhooked(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    if (is_watched(parameter.tensor)) throw InputError(fmt::format("DataParallel: {} is wrapped already", parameter.name));
  }
}

struct ParameterHooks::Watched {
  Watched(NamedTensor watched, std::function<void()> on_gradient)
      : parameter(std::move(watched)), node(torch::autograd::impl::grad_accumulator(parameter.tensor)) {
    key = node->add_post_hook(std::make_unique<AccumulatedHook>(std::move(on_gradient)));
    // Not add_hook(), which expects that there is none yet.
    torch::autograd::impl::hooks(parameter.tensor).push_back(std::make_unique<ReplacedNodeHook>(parameter, node.get()));
  }
  ~Watched() {
    node->del_post_hook(key);
    // By what it is: Python's first register_hook() frees all that is there, and its own may come to lie at the same address.
    std::erase_if(torch::autograd::impl::hooks(parameter.tensor), [this](const auto& hook) {
      const auto* ours = dynamic_cast<const ReplacedNodeHook*>(hook.get());
      return ours != nullptr && ours->node == node.get();
    });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  const NamedTensor parameter;
  const decltype(torch::autograd::impl::grad_accumulator({})) node;  // the tensor itself does not keep it
  uintptr_t key = 0;
};

ParameterHooks::ParameterHooks(std::vector<NamedTensor> parameters, std::function<void(size_t)> on_gradient) {
  check_unhooked(parameters);
  const auto call = std::make_shared<const std::function<void(size_t)>>(std::move(on_gradient));
  for (size_t i = 0; i < parameters.size(); ++i) {
    watched_.push_back(std::make_unique<Watched>(std::move(parameters[i]), [call, i] { (*call)(i); }));
  }
}

ParameterHooks::~ParameterHooks() = default;

std::vector<const Node*> ParameterHooks::nodes() const {
  std::vector<const Node*> nodes;
  for (const auto& each : watched_) nodes.push_back(each->node.get());
  return nodes;
}

}  // namespace firkin
