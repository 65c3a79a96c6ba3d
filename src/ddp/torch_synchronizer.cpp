#include "torch_synchronizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "firkin/base/error.h"

namespace firkin {

TorchSynchronizer::TorchSynchronizer(SynchronizerSetup setup_in)
    : StepSynchronizer(std::move(setup_in)), has_come_(setup().parameters.size(), false) {
  install_hooks();  // first, so that they run before the Reducer's: prepare() must
  reducer_.emplace(setup().group, setup().parameters, setup().ready_order,
                   TorchReducerOptions{.cap = setup().options.cap, .gradient_as_bucket_view = setup().options.torch_bucket_views});
}

void TorchSynchronizer::check_can_join() const {
  throw InputError("join(): the strategy torch does not support it");
}

void TorchSynchronizer::begin_gradients(int64_t /*step*/) {
  has_come_.assign(has_come_.size(), false);
  reducer_->prepare();
}

void TorchSynchronizer::backward_ended() {
  for (size_t i = 0; i < has_come_.size(); ++i) {
    if (!has_come_[i]) reducer_->mark_ready(i);
  }
  has_come_.assign(has_come_.size(), true);
}

// Outside of backward the Reducer cannot be told that a parameter is ready: a backward of our own over what has not come does it.
void TorchSynchronizer::catch_up() {
  const at::AutoGradMode with_gradients(true);
  at::Tensor nothing = at::zeros({});
  bool is_complete = true;
  for (size_t i = 0; i < has_come_.size(); ++i) {
    if (has_come_[i]) continue;
    nothing = nothing + (setup().parameters[i].tensor * 0).sum().to(nothing.options());
    is_complete = false;
  }
  if (is_complete) return;
  struct Ignoring {
    explicit Ignoring(std::atomic<bool>& flag_in) : flag(flag_in) { flag = true; }
    ~Ignoring() { flag = false; }
    std::atomic<bool>& flag;
  } const ignoring(is_catching_up_);
  nothing.backward();
  has_come_.assign(has_come_.size(), true);
}

std::exception_ptr TorchSynchronizer::send_gradients(RankState /*state*/) {
  if (std::ranges::find(has_come_, false) != has_come_.end()) catch_up();
  return nullptr;
}

void TorchSynchronizer::receive_gradients(const StepAgreement& agreement) {
  reducer_->rebuild_buckets();
  for (size_t i = 0; i < has_come_.size(); ++i) {
    if (!agreement.is_used(i)) setup().parameters[i].tensor.mutable_grad().reset();
  }
}

DataParallelStats TorchSynchronizer::stats() const {
  const std::lock_guard lock(mutex_);
  DataParallelStats result{.tensors = {}, .buckets = {}, .exposed_wait_s = exposed_wait_s(), .steps = steps_finished()};
  for (const int64_t parameter : setup().ready_order) result.tensors.push_back(setup().parameters[static_cast<size_t>(parameter)].name);
  for (const int64_t bytes : reducer_->bucket_bytes()) result.buckets.push_back({.bytes = bytes, .bytes_on_wire = bytes});
  return result;
}

const BucketPlan& TorchSynchronizer::plan() const {
  static const BucketPlan kNone;
  return kNone;
}

}  // namespace firkin
