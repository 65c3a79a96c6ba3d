#include "firkin/ddp/module_parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "firkin/base/error.h"
#include "module_state.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace firkin {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;
// LibTorch 2.11 and 2.13 have different smart pointers to nodes.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator({}));

// A hook that runs after the node that accumulates a parameter's gradient.
struct AccumulatedHook final : torch::autograd::FunctionPostHook {
  explicit AccumulatedHook(std::function<void()> call_in) : call(std::move(call_in)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    if (inputs[0].defined()) call();  // autograd does not accumulate an undefined gradient
    return outputs;
  }
  std::function<void()> call;
};

// A hook that runs before that node. Unlike the node, which autograd may replace, it stays with the tensor.
struct TensorHook final : torch::autograd::FunctionPreHook {
  TensorHook(std::function<void()> call_in, bool of_watched) : call(std::move(call_in)), is_of_watched(of_watched) {}
  variable_list operator()(const variable_list& gradients) override {
    call();
    return gradients;
  }
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {
    throw InputError("DataParallel: PyTorch's compiled autograd runs no hooks of C++; expected compiled autograd turned off");
  }
  std::function<void()> call;
  bool is_of_watched;  // by ParameterHooks; otherwise by NewcomerHooks
};

// Returns the hook's address, for remove_hook().
const void* add_hook(const at::Tensor& tensor, bool of_watched, std::function<void()> call) {
  torch::autograd::impl::materialize_autograd_meta(tensor);
  auto& hooks = torch::autograd::impl::hooks(tensor);  // LibTorch 2.13's add_hook() expects that there is none yet
  return hooks.emplace_back(std::make_unique<TensorHook>(std::move(call), of_watched)).get();
}

// Also checks the type of the hook at that address: Python's first register_hook() frees all hooks of the tensor, and
// its own may get the same address.
void remove_hook(const at::Tensor& tensor, const void* ours) {
  std::erase_if(torch::autograd::impl::hooks(tensor),
                [ours](const auto& hook) { return hook.get() == ours && dynamic_cast<const TensorHook*>(hook.get()) != nullptr; });
}

// Whether the running backward adds to the parameter's gradient. autograd::grad() returns the gradient instead.
bool is_accumulated(const at::Tensor& parameter) {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return true;
  const auto node = torch::autograd::impl::try_get_grad_accumulator(parameter);
  const auto found = node == nullptr ? chosen->end() : chosen->find(node.get());
  return found != chosen->end() && found->second.needed_;
}

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
  const auto follows = [](const auto& hook) {
    const auto* const known = dynamic_cast<TensorHook*>(hook.get());
    return known != nullptr && known->is_of_watched;
  };
  return (node != nullptr && std::ranges::any_of(node->post_hooks(), is_ours)) ||
         std::ranges::any_of(torch::autograd::impl::hooks(parameter), follows);
}

void check_unhooked(const std::vector<NamedTensor>& parameters) {
  for (const NamedTensor& parameter : parameters) {
    if (is_hooked(parameter.tensor))
      throw InputError(fmt::format(
          "DataParallel: {} is wrapped already; expected one DataParallel over a module that holds all which shares it", parameter.name));
  }
}

struct ParameterHooks::Watched {
  Watched(NamedTensor watched, std::function<void()> on_gradient_in)
      : parameter(std::move(watched)),
        options(parameter.tensor.options()),
        sizes(parameter.tensor.sizes().vec()),
        on_gradient(std::move(on_gradient_in)) {
    hook(torch::autograd::impl::grad_accumulator(parameter.tensor));
    new_node_hook = add_hook(parameter.tensor, /*of_watched=*/true, [this] { follow(); });
  }
  ~Watched() {
    for (const Hooked& each : hooked) each.node->del_post_hook(each.key);
    remove_hook(parameter.tensor, new_node_hook);
  }
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  void hook(NodePointer node) {
    const uintptr_t key = node->add_post_hook(std::make_unique<AccumulatedHook>(on_gradient));
    hooked.push_back({.node = std::move(node), .key = key});
  }

  // Called before a gradient is accumulated: adds a hook to the node if it is new. A graph that was made before keeps
  // the old node, and its hook.
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
    NodePointer node;  // keeps the node alive, which the tensor does not
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

NewcomerHooks::NewcomerHooks(const std::vector<NamedTensor>& all, const std::vector<NamedTensor>& known,
                             const std::function<void()>& call) {
  std::unordered_set<const void*> hooked;
  for (const NamedTensor& parameter : known) hooked.insert(parameter.tensor.unsafeGetTensorImpl());
  for (const auto& [name, tensor] : all) {
    if (tensor.is_inference() || !hooked.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const Parameter weak(tensor.getIntrusivePtr());
    const auto call_if_accumulated = [weak, call] {
      const auto alive = weak.lock();
      if (alive && is_accumulated(at::Tensor(alive)) && !is_hooked(at::Tensor(alive))) call();
    };
    hooked_.emplace_back(weak, add_hook(tensor, /*of_watched=*/false, call_if_accumulated));
  }
}

NewcomerHooks::~NewcomerHooks() {
  for (const auto& [weak, ours] : hooked_) {
    if (const auto alive = weak.lock()) remove_hook(at::Tensor(alive), ours);
  }
}

std::vector<const Node*> ParameterHooks::nodes() const {
  std::vector<const Node*> nodes;
  for (const auto& each : watched_) {
    const auto now = torch::autograd::impl::try_get_grad_accumulator(each->parameter.tensor);
    nodes.push_back(now != nullptr ? now.get() : each->hooked.back().node.get());
  }
  return nodes;
}

}  // namespace firkin
