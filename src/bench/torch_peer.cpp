#include "bench/torch_peer.h"

#include <numeric>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/ddp/module_parameters.h"

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

namespace firkin {
namespace {

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

// Broadcasts in pieces of the size that DistributedDataParallel uses.
void broadcast_from_rank_0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty()) c10d::broadcast_coalesced(group.c10d, tensors, 250 * kMiB);
}

// The Reducer expects forward order, the reverse of gradient-ready order.
std::vector<NamedTensor> in_forward_order(const std::vector<NamedTensor>& registered, std::vector<int64_t> ready_order) {
  if (ready_order.empty()) return registered;
  std::vector<NamedTensor> result;
  for (auto parameter = ready_order.rbegin(); parameter != ready_order.rend(); ++parameter) {
    result.push_back(registered.at(static_cast<size_t>(*parameter)));
  }
  return result;
}

std::shared_ptr<c10d::Reducer> make_reducer(const ProcessGroup& group, const std::vector<NamedTensor>& parameters,
                                            const DataParallelOptions& options) {
  std::vector<at::Tensor> tensors;
  std::unordered_map<size_t, std::string> names;
  for (const NamedTensor& parameter : parameters) {
    names[tensors.size()] = parameter.name;
    tensors.push_back(parameter.tensor);
  }
  const std::vector<bool> dense(tensors.size(), false);
  const int64_t cap = options.cap.cap_bytes;
  const int64_t first_cap = options.cap.first_cap_bytes.value_or(cap);
  // Caps are dealt out in the order of the tensors that are passed: gradient-ready order, so that the first bucket is
  // the first to go.
  const std::vector<at::Tensor> in_ready_order(tensors.rbegin(), tensors.rend());
  std::vector<int64_t> indices(tensors.size());
  std::iota(indices.rbegin(), indices.rend(), 0);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      in_ready_order, {static_cast<size_t>(first_cap), static_cast<size_t>(cap)}, dense, indices, {}));
  return std::make_shared<c10d::Reducer>(tensors, std::move(buckets), group.c10d, dense, cap, /*find_unused_parameters=*/false,
                                         /*gradient_as_bucket_view=*/true, names, first_cap, /*skip_all_reduce_unused_params=*/false,
                                         /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
}

}  // namespace

TorchPeer::TorchPeer(const torch::nn::Module& module, const ProcessGroup& group, const DataParallelOptions& options) : group_(group) {
  const std::vector<NamedTensor> parameters = in_forward_order(trainable_parameters(module), options.ready_order);
  if (parameters.empty()) throw InputError("the strategy torch: the module has no trainable parameter");
  const std::vector<at::Tensor> buffers = detached(module.buffers());
  if (options.broadcast_parameters) {
    broadcast_from_rank_0(group, detached(module.parameters()));
    broadcast_from_rank_0(group, buffers);
  }
  if (options.broadcast_buffers) buffers_ = buffers;
  reducer_ = make_reducer(group, parameters, options);
  logger_ = std::make_shared<c10d::Logger>(reducer_);
}

void TorchPeer::prepare() {
  broadcast_from_rank_0(group_, buffers_);
  reducer_->prepare_for_backward({});
}

void TorchPeer::rebuild_buckets() {
  reducer_->rebuild_buckets();
}

std::vector<int64_t> TorchPeer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  for (c10d::GradBucket& bucket : reducer_->get_grad_buckets()) bytes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  return bytes;
}

}  // namespace firkin
