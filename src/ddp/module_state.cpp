#include "module_state.h"

#include <ATen/ceil_div.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>

#include <map>

#include "agreement.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Gives access to a module's own parameters. Module::named_parameters() would make full names, which takes too long for
// every step.
struct Registered : torch::nn::Module {
  static const torch::OrderedDict<std::string, at::Tensor>& parameters_of(const torch::nn::Module& module) {
    return module.*(&Registered::parameters_);
  }
};

// Calls visit(place, tensor) for each parameter, or for the tensor in its place, and, if modules_too, visit(place,
// null) for each module that has some, itself or in submodules. Ends when a visit returns false, and returns whether
// none did. `tensors` counts the tensors.
template <typename Place, typename Visit>
bool visit_all(const torch::nn::Module& module, bool modules_too, Visit& visit, size_t& tensors) {
  const size_t before = tensors;
  Place place{.module = &module};
  for (const auto& item : Registered::parameters_of(module)) {
    ++place.index;
    if (!item.value().defined()) continue;
    ++tensors;
    if (!visit(place, &item.value())) return false;
  }
  for (const auto& child : module.children()) {
    if (!visit_all<Place>(*child, modules_too, visit, tensors)) return false;
  }
  return !modules_too || tensors == before || visit(Place{.module = &module}, nullptr);
}

// Calls visit(name, buffer) for each buffer. The name may lack the module's path.
template <typename Visit>
void visit_buffers(const torch::nn::Module& module, Visit& visit) {
  if (const auto* mirror = dynamic_cast<const MirrorModule*>(&module)) {
    for (const auto& [name, buffer] : mirror->buffers_there()) visit(name, buffer);
    return;
  }
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (item.value().defined()) visit(item.key(), item.value());
  }
  for (const auto& child : module.children()) visit_buffers(*child, visit);
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

// The bytes that a tensor takes in a broadcast. They are rounded up, so that elements of any dtype are aligned behind
// them.
int64_t part_bytes(const at::Tensor& tensor) {
  return at::round_up(static_cast<int64_t>(tensor.nbytes()), int64_t{16});
}

}  // namespace

std::vector<NamedTensor> buffers_in(const torch::nn::Module& module) {
  if (const auto* mirror = dynamic_cast<const MirrorModule*>(&module)) return mirror->buffers_there();
  std::vector<NamedTensor> result;
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) result.push_back({item.key(), item.value()});
  }
  return result;
}

void ParameterWatch::record() {
  recorded_.clear();
  const auto add = [this](const Place& place, const at::Tensor* tensor) {
    if (tensor == nullptr) recorded_.push_back({.place = place, .identity = place.module});
    if (tensor != nullptr && tensor->is_leaf())
      recorded_.push_back({.place = place, .identity = tensor->unsafeGetTensorImpl(), .is_trained = tensor->requires_grad()});
    return true;
  };
  size_t tensors = 0;
  visit_all<Place>(*module_, modules_too_, add, tensors);
}

bool ParameterWatch::has_changed() const {
  size_t position = 0;
  const auto compare = [&](const Place& place, const at::Tensor* tensor) {
    const Entry* recorded = position < recorded_.size() ? &recorded_[position] : nullptr;
    // A module around parameters that were there before is no change, and neither is a computed tensor.
    if (tensor == nullptr || !tensor->is_leaf()) {
      if (recorded != nullptr && recorded->place == place) ++position;
      return true;
    }
    ++position;
    return recorded != nullptr && recorded->identity == tensor->unsafeGetTensorImpl() && recorded->is_trained == tensor->requires_grad();
  };
  size_t tensors = 0;
  return !visit_all<Place>(*module_, modules_too_, compare, tensors) || position < recorded_.size();
}

TensorBroadcast::DeviceBatch TensorBroadcast::gather(const std::vector<at::Tensor>& like, const ProcessGroup& group) {
  DeviceBatch batch{.bytes = {}, .parts = {}, .tensors = {}, .group = group, .work = {}};
  int64_t bytes = 0;
  for (const at::Tensor& tensor : like) bytes += part_bytes(tensor);
  batch.bytes = at::zeros({bytes}, at::TensorOptions(at::kByte).device(like[0].device()));
  int64_t offset = 0;
  for (const at::Tensor& tensor : like) {
    const at::Tensor part = batch.bytes.narrow(0, offset, static_cast<int64_t>(tensor.nbytes()));
    batch.parts.push_back(part.view(tensor.scalar_type()).view(tensor.sizes()));
    offset += part_bytes(tensor);
  }
  return batch;
}

TensorBroadcast::TensorBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, const std::vector<at::Tensor>& like)
    : rank_(gradients.rank) {
  if (gradients.is_alone()) return;
  std::map<std::string, std::vector<at::Tensor>> by_device;
  for (const at::Tensor& tensor : like) {
    if (tensor.numel() > 0) by_device[tensor.device().str()].push_back(tensor);
  }
  for (const auto& [device, on_device] : by_device) {
    devices_.push_back(gather(on_device, can_carry(beside, on_device[0].device().type()) ? beside : gradients));
  }
}

void TensorBroadcast::launch(int root, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  root_ = root;
  for (DeviceBatch& batch : devices_) {
    batch.tensors.clear();
    for (const at::Tensor& tensor : tensors) {
      if (tensor.numel() > 0 && tensor.device() == batch.bytes.device()) batch.tensors.push_back(tensor);
    }
    if (rank_ == root && !tensors.empty()) at::_foreach_copy_(batch.parts, batch.tensors);
    batch.work = start_broadcast(batch.group, batch.bytes, root);
  }
}

void TensorBroadcast::wait(bool keep) {
  const at::AutoDispatchBelowADInplaceOrView uncounted;
  for (DeviceBatch& batch : devices_) {
    firkin::wait(batch.group, batch.work, "the broadcast of buffers");
    batch.work.reset();
    if (keep && rank_ != root_) at::_foreach_copy_(batch.tensors, batch.parts);
    batch.tensors.clear();
  }
}

BufferBroadcast::BufferBroadcast(const torch::nn::Module& module, const ProcessGroup& control, const ProcessGroup& gradients)
    : module_(&module), control_(control), gradients_(gradients) {
  adopt();
}

bool BufferBroadcast::fits(size_t position, const std::string& name, const at::Tensor& buffer) const {
  if (position >= adopted_.size()) return false;
  const Description& recorded = adopted_[position];
  return buffer.sizes() == recorded.sizes && buffer.scalar_type() == recorded.dtype && buffer.device() == recorded.device &&
         name == recorded.name;
}

bool BufferBroadcast::read() {
  buffers_.clear();
  has_changed_ = false;
  const auto compare = [this](const std::string& name, const at::Tensor& buffer) {
    has_changed_ = has_changed_ || !fits(buffers_.size(), name, buffer);
    buffers_.push_back(buffer);
  };
  visit_buffers(*module_, compare);
  has_changed_ = has_changed_ || buffers_.size() != adopted_.size();
  return has_changed_;
}

void BufferBroadcast::adopt() {
  adopted_.clear();
  const auto add = [this](const std::string& name, const at::Tensor& buffer) {
    adopted_.push_back({.name = name, .sizes = buffer.sizes().vec(), .dtype = buffer.scalar_type(), .device = buffer.device()});
  };
  visit_buffers(*module_, add);
  read();
  broadcast_.emplace(control_, gradients_, buffers_);
}

std::vector<std::string> BufferBroadcast::lines() const {
  std::vector<std::string> lines;
  for (const auto& [name, buffer] : buffers_in(*module_)) lines.push_back(describe_tensor("buffer", name, buffer.contiguous()));
  return lines;
}

void BufferBroadcast::launch(int root) {
  broadcast_->launch(root, has_changed_ ? std::vector<at::Tensor>{} : buffers_);
}

void BufferBroadcast::wait(bool keep) {
  broadcast_->wait(keep);
  received_.clear();
  for (const at::Tensor& buffer : buffers_) {
    if (keep) received_.push_back({.tensor = buffer.unsafeGetTensorImpl(), .version = version_of(buffer)});
  }
  buffers_.clear();
}

std::vector<NamedTensor> BufferBroadcast::untouched() const {
  std::vector<NamedTensor> result;
  for (const auto& [name, buffer] : buffers_in(*module_)) {
    const size_t position = result.size();
    const bool is_untouched = position < received_.size() && received_[position].tensor == buffer.unsafeGetTensorImpl() &&
                              received_[position].version == version_of(buffer);
    result.push_back({name, is_untouched ? buffer : at::Tensor()});
  }
  return result;
}

void broadcast_tensors(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  constexpr size_t kLargestBroadcast = 64 * kMiB;
  std::vector<at::Tensor> batch;
  size_t bytes = 0;
  const auto send = [&] {
    TensorBroadcast broadcast(group, group, batch);
    broadcast.launch(root, batch);
    broadcast.wait(/*keep=*/true);
    batch.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : tensors) {
    if (!batch.empty() && bytes + tensor.nbytes() > kLargestBroadcast) send();
    batch.push_back(tensor);
    bytes += tensor.nbytes();
  }
  if (!batch.empty()) send();
}

}  // namespace firkin
