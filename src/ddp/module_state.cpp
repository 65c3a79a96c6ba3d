#include "module_state.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>

#include <algorithm>

#include "firkin/base/units.h"

namespace firkin {
namespace {

// Copies the tensors into one, broadcasts it, and copies back.
void broadcast_as_one(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  std::vector<at::Tensor> flat_parts;
  for (const at::Tensor& tensor : tensors) flat_parts.push_back(tensor.detach().reshape({-1}));
  at::Tensor flat = at::cat(flat_parts);
  broadcast(group, {flat}, root);
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    tensor.detach().copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

}  // namespace

void broadcast_together(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root) {
  if (group.size == 1) return;
  at::NoGradGuard no_grad;
  constexpr size_t kLargestBroadcast = 64 * kMiB;
  std::vector<at::Tensor> sorted = tensors;
  std::ranges::stable_sort(sorted, {}, [](const at::Tensor& t) { return t.scalar_type(); });
  std::vector<at::Tensor> together;
  size_t bytes = 0;
  const auto flush = [&] {
    if (!together.empty()) broadcast_as_one(group, together, root);
    together.clear();
    bytes = 0;
  };
  for (const at::Tensor& tensor : sorted) {
    const bool fits = together.empty() || (tensor.scalar_type() == together[0].scalar_type() && tensor.device() == together[0].device());
    if (!fits || bytes >= kLargestBroadcast) flush();
    together.push_back(tensor);
    bytes += tensor.nbytes();
  }
  flush();
}

}  // namespace firkin
