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
// LibTorch 2.11 and 2.13 share nodes differently.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator({}));

// Runs after the node that accumulates a gradient.
struct AccumulatedHook final : torch::autograd::FunctionPostHook {
  explicit AccumulatedHook(std::function<void()> call_in) : call(std::move(call_in)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (inputs[0].defined()) call();  // an undefined one is not accumulated
    return outputs;
  }
  std::function<void()> call;
};

// Runs before that node. Unlike the node, it stays with the tensor.
struct NewNodeHook final : torch::autograd::FunctionPreHook {
  explicit NewNodeHook(std::function<void()> call_in) : call(std::move(call_in)) {}
  variable_list operator()(const variable_list& gradients) override {
    call();
    return gradients;
  }
  std::function<void()> call;
};

}  // namespace

std::vector<NamedTensor> parameters_in(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  for (const auto& item : module.named_parameters()) {
    if (item.value().is_leaf()) result.push_back({item.key(), item.value()});
  }
  return result;
}

std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedTensor> result;
  std::unordered_set<const void*> seen;
  for (NamedTensor& parameter : parameters_in(module)) {
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.requires_grad() && seen.insert(tensor.unsafeGetTensorImpl()).second) result.push_back(std::move(parameter));
  }
  return result;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

bool is_hooked(const at::Tensor& parameter) {
  if (!parameter.requires_grad()) return false;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto is_ours = [](const auto& hook) { return dynamic_cast<AccumulatedHook*>(hook.get()) != nullptr; };
  const auto follows = [](const auto& hook) { return dynamic_cast<NewNodeHook*>(hook.get()) != nullptr; };
  return (node != nullptr && std::ranges::any_of(node->post_hooks(), is_ours)) ||
         std::ranges::any_of(torch::autograd::impl::hooks(parameter), follows);
}

void check_unhooked(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    if (is_hooked(parameter.tensor)) throw InputError(fmt::format("DataParallel: {} is wrapped already", parameter.name));
  }
}

struct ParameterHooks::Watched {
  Watched(NamedTensor watched, std::function<void()> on_gradient_in)
      : parameter(std::move(watched)),
        options(parameter.tensor.options()),
        sizes(parameter.tensor.sizes().vec()),
        on_gradient(std::move(on_gradient_in)) {
    hook(torch::autograd::impl::grad_accumulator(parameter.tensor));
    auto follows = std::make_unique<NewNodeHook>([this] { follow(); });
    new_node_hook = follows.get();
    // Not add_hook(), which expects that there is none yet.
    torch::autograd::impl::hooks(parameter.tensor).push_back(std::move(follows));
  }
  ~Watched() {
    for (const Hooked& each : hooked) each.node->del_post_hook(each.key);
    // The type is checked as well: Python's first register_hook() frees all hooks, and its own may come to lie at the
    // same address.
    std::erase_if(torch::autograd::impl::hooks(parameter.tensor), [this](const auto& hook) {
      return hook.get() == new_node_hook && dynamic_cast<const NewNodeHook*>(hook.get()) != nullptr;
    });
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void hook(NodePointer node) {
    const uintptr_t key = node->add_post_hook(std::make_unique<AccumulatedHook>(on_gradient));
    hooked.push_back({.node = std::move(node), .key = key});
  }

  // A graph that was made before the last change still has the old node, and its hook.
  void follow() {
    auto now = torch::autograd::impl::try_get_grad_accumulator(parameter.tensor);
    if (now == nullptr || now == hooked.back().node) return;
    const at::Tensor& tensor = parameter.tensor;
    if (tensor.scalar_type() != options.dtype() || tensor.device() != options.device() || tensor.sizes() != sizes) {
      throw RuntimeError(fmt::format(
          "DataParallel: the dtype, device or shape of {} changed after wrapping; expected the change before, or a new DataParallel",
          parameter.name));
    }
    std::erase_if(hooked, [](const Hooked& each) { return each.node.use_count() == 1; });
    hook(std::move(now));
  }

  struct Hooked {
    NodePointer node;  // the tensor itself does not keep it
    uintptr_t key;
  };

  const NamedTensor parameter;
  const at::TensorOptions options;  // when it was wrapped
  const std::vector<int64_t> sizes;
  const std::function<void()> on_gradient;
  std::vector<Hooked> hooked;  // the last is in use; the others are of older graphs
  const void* new_node_hook = nullptr;
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
  for (const auto& each : watched_) {
    const auto now = torch::autograd::impl::try_get_grad_accumulator(each->parameter.tensor);
    nodes.push_back(now != nullptr ? now.get() : each->hooked.back().node.get());
  }
  return nodes;
}

}  // namespace firkin
