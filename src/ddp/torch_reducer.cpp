#include "torch_reducer.h"

#include "firkin/base/error.h"

#include <torch/headeronly/version.h>
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 13
#define FIRKIN_HAS_TORCH_REDUCER 1
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#endif

namespace firkin {

#ifdef FIRKIN_HAS_TORCH_REDUCER

std::string torch_reducer_unavailable() {
  return "";
}

struct TorchReducer::State {
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  // the Reducer expects one
  std::vector<size_t> index_of;          // parameter -> the Reducer's index
};

TorchReducer::TorchReducer(const ProcessGroup& group, const std::vector<NamedTensor>& parameters, const std::vector<int64_t>& ready_order,
                           const TorchReducerOptions& options)
    : state_(std::make_unique<State>()) {
  std::vector<at::Tensor> tensors;  // the Reducer wants forward order
  std::unordered_map<size_t, std::string> names;
  state_->index_of.resize(parameters.size());
  for (auto parameter = ready_order.rbegin(); parameter != ready_order.rend(); ++parameter) {
    state_->index_of[static_cast<size_t>(*parameter)] = tensors.size();
    names[tensors.size()] = parameters[static_cast<size_t>(*parameter)].name;
    tensors.push_back(parameters[static_cast<size_t>(*parameter)].tensor);
  }
  const std::vector<bool> dense(tensors.size(), false);
  const int64_t cap = options.cap.cap_bytes;
  const int64_t first_cap = options.cap.first_cap_bytes.value_or(cap);
  // Caps are dealt out in the order of the tensors that are passed: gradient-ready order, so that the first bucket is the first to go.
  std::vector<at::Tensor> in_ready_order(tensors.rbegin(), tensors.rend());
  std::vector<int64_t> indices;
  for (size_t i = tensors.size(); i-- > 0;) indices.push_back(static_cast<int64_t>(i));
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(
      in_ready_order, {static_cast<size_t>(first_cap), static_cast<size_t>(cap)}, dense, indices, {}));
  state_->reducer = std::make_shared<c10d::Reducer>(tensors, std::move(buckets), group.c10d, dense, cap,
                                                    /*find_unused_parameters=*/false, options.gradient_as_bucket_view, names, first_cap,
                                                    /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
                                                    /*bucket_bytes_cap_list=*/std::vector<int64_t>{});
  state_->logger = std::make_shared<c10d::Logger>(state_->reducer);
}

void TorchReducer::prepare() {
  state_->reducer->prepare_for_backward({});
}

void TorchReducer::mark_ready(size_t parameter) {
  state_->reducer->autograd_hook(state_->index_of[parameter]);
}

void TorchReducer::rebuild_buckets() {
  state_->reducer->rebuild_buckets();
}

std::vector<int64_t> TorchReducer::bucket_bytes() const {
  std::vector<int64_t> bytes;
  for (c10d::GradBucket& bucket : state_->reducer->get_grad_buckets()) bytes.push_back(static_cast<int64_t>(bucket.getBuffer().nbytes()));
  return bytes;
}

#else

std::string torch_reducer_unavailable() {
  return "expected LibTorch 2.13 or later";
}

struct TorchReducer::State {};

TorchReducer::TorchReducer(const ProcessGroup&, const std::vector<NamedTensor>&, const std::vector<int64_t>&, const TorchReducerOptions&) {
  throw InputError("strategy torch: " + torch_reducer_unavailable());
}
void TorchReducer::prepare() {}
void TorchReducer::mark_ready(size_t) {}
void TorchReducer::rebuild_buckets() {}
std::vector<int64_t> TorchReducer::bucket_bytes() const {
  return {};
}

#endif

TorchReducer::~TorchReducer() = default;

}  // namespace firkin
