#include "module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include <map>
#include <string>

#include "firkin/base/units.h"

namespace firkin {
namespace {

// Module::named_parameters() makes names, which takes longer than many a step has time.
struct Registered : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
    return module.*(&Registered::parameters_);
  }
};

// Calls visit(identity, is trained) for each parameter, and perhaps each module; ends when it returns false, and returns whether it never
// did.
template <typename Visit>
bool visit_all(const torch::nn::Module& module, bool modules_too, Visit& visit) {
  if (modules_too && !visit(&module, false)) return false;
  for (const auto& item : Registered::parameters_of(module)) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && !visit(tensor.unsafeGetTensorImpl(), tensor.requires_grad())) return false;
  }
  for (const auto& child : module.children()) {
    if (!visit_all(*child, modules_too, visit)) return false;
  }
  return true;
}

constexpr int64_t kPartAlignment = 16;  // of every part: whole elements of any dtype

int64_t whole_parts(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

void ParameterWatch::look() {
  seen_.clear();
  const auto note = [this](const void* identity, bool is_trained) {
    seen_.emplace_back(identity, is_trained);
    return true;
  };
  visit_all(*module_, modules_too_, note);
}

bool ParameterWatch::has_changed() const {
  size_t position = 0;
  const auto compare = [&](const void* identity, bool is_trained) {
    return position < seen_.size() && seen_[position++] == std::pair(identity, is_trained);
  };
  return !visit_all(*module_, modules_too_, compare) || position < seen_.size();
}

TensorBroadcast::Together TensorBroadcast::gather(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
  Together together{.bytes = {}, .parts = {}, .tensors = tensors, .group = group, .work = {}};
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += whole_parts(static_cast<int64_t>(tensor.nbytes()));
  together.bytes = at::zeros({bytes}, at::TensorOptions(at::kByte).device(tensors[0].device()));
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    const auto length = static_cast<int64_t>(tensor.nbytes());
    together.parts.push_back(together.bytes.narrow(0, offset, length).view(tensor.scalar_type()).view(tensor.sizes()));
    offset += whole_parts(length);
  }
  return together;
}

TensorBroadcast::TensorBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, const std::vector<at::Tensor>& tensors)
    : rank_(gradients.rank) {
  if (gradients.is_alone()) return;
  std::map<std::string, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() > 0) by_device[tensor.device().str()].push_back(tensor);
  }
  for (const auto& [device, on_device] : by_device) {
    devices_.push_back(gather(on_device, can_carry(beside, on_device[0].device().type()) ? beside : gradients));
  }
}

void TensorBroadcast::launch(int root) {
  const at::NoGradGuard no_grad;
  root_ = root;
  for (Together& together : devices_) {
    if (rank_ == root) at::_foreach_copy_(together.parts, together.tensors);
    together.work = start_broadcast(together.group, together.bytes, root);
  }
}

void TensorBroadcast::wait(bool keep) {
  const at::NoGradGuard no_grad;
  for (Together& together : devices_) {
    firkin::wait(together.group, together.work, "the broadcast of buffers");
    together.work.reset();
    if (keep && rank_ != root_) at::_foreach_copy_(together.tensors, together.parts);
  }
}

void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  constexpr size_t kLargestBroadcast = 64 * kMiB;
  std::vector<at::Tensor> together;
  size_t bytes = 0;
  const auto send = [&] {
    TensorBroadcast broadcast(group, group, together);
    broadcast.launch(root);
    broadcast.wait(/*keep=*/true);
    together.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : tensors) {
    if (!together.empty() && bytes + tensor.nbytes() > kLargestBroadcast) send();
    together.push_back(tensor);
    bytes += tensor.nbytes();
  }
  if (!together.empty()) send();
}

}  // namespace firkin
