#include "buffer_broadcast.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <map>

namespace firkin {
namespace {

constexpr int64_t kPartAlignment = 16;  // of every part: whole elements of any dtype

int64_t whole_parts(int64_t bytes) {
  return (bytes + kPartAlignment - 1) / kPartAlignment * kPartAlignment;
}

}  // namespace

BufferBroadcast::Together BufferBroadcast::gather(const std::vector<at::Tensor>& buffers, const ProcessGroup& group) {
  Together together{.bytes = {}, .parts = {}, .buffers = buffers, .group = group, .work = {}};
  int64_t bytes = 0;
  for (const at::Tensor& buffer : buffers) bytes += whole_parts(static_cast<int64_t>(buffer.nbytes()));
  together.bytes = at::zeros({bytes}, at::TensorOptions(at::kByte).device(buffers[0].device()));
  int64_t offset = 0;
  for (const at::Tensor& buffer : buffers) {
    const auto length = static_cast<int64_t>(buffer.nbytes());
    together.parts.push_back(together.bytes.narrow(0, offset, length).view(buffer.scalar_type()).view(buffer.sizes()));
    offset += whole_parts(length);
  }
  return together;
}

BufferBroadcast::BufferBroadcast(const ProcessGroup& beside, const ProcessGroup& gradients, std::vector<at::Tensor> buffers)
    : rank_(gradients.rank) {
  if (gradients.size == 1) return;
  std::map<std::string, std::vector<at::Tensor>> by_device;
  for (at::Tensor& buffer : buffers) {
    if (buffer.numel() > 0) by_device[buffer.device().str()].push_back(std::move(buffer));
  }
  for (const auto& [device, on_device] : by_device) {
    devices_.push_back(gather(on_device, can_carry(beside, on_device[0].device().type()) ? beside : gradients));
  }
}

void BufferBroadcast::launch(int root) {
  const at::NoGradGuard no_grad;
  root_ = root;
  for (Together& together : devices_) {
    if (rank_ == root) {
      for (size_t i = 0; i < together.parts.size(); ++i) together.parts[i].copy_(together.buffers[i]);
    }
    together.work = start_broadcast(together.group, together.bytes, root);
  }
}

void BufferBroadcast::wait(bool keep) {
  const at::NoGradGuard no_grad;
  for (Together& together : devices_) {
    firkin::wait(together.group, together.work, "the broadcast of buffers");
    together.work.reset();
    if (!keep || rank_ == root_) continue;
    for (size_t i = 0; i < together.parts.size(); ++i) together.buffers[i].copy_(together.parts[i]);
  }
}

}  // namespace firkin
