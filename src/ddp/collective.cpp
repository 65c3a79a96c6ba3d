#include "collective.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using c10::ivalue::Future;

// Completes when the hook's future does, without its error. Unlike c10d's own wrapper of a future it can be waited for
// with a timeout, so that firkin::wait() can look out for ranks that have died.
class HookWork final : public c10d::Work {
 public:
  c10::intrusive_ptr<Future> getFuture() override { return done_; }
  void complete() {
    done_->markCompleted();
    finish();  // after it: whoever waited may free what the callbacks of done_ write to
  }

 private:
  c10::intrusive_ptr<Future> done_ = c10::make_intrusive<Future>(c10::NoneType::get());
};

BucketReduction start_plain(const ProcessGroup& group, at::Tensor bucket) {
  return {start_all_reduce(group, std::move(bucket)), {}};
}

}  // namespace

GradientHook plain_all_reduce() {
  return {.name = "none", .start = start_plain};
}
GradientHook bf16_compression() {
  return {.name = "bf16", .start = start_plain, .wire_dtype = at::kBFloat16};
}
GradientHook fp16_compression() {
  return {.name = "fp16", .start = start_plain, .wire_dtype = at::kHalf};
}
GradientHook comm_hook(std::string name, std::shared_ptr<c10d::CommHookInterface> hook) {
  return {.name = std::move(name), .start = nullptr, .comm_hook = std::move(hook)};
}

void CommHookCalls::begin(const GradientBuckets& buckets) {
  futures_.assign(static_cast<size_t>(buckets.bucket_count()), nullptr);
  count_ = 0;
  error_ = nullptr;
}

BucketReduction CommHookCalls::launch(const ProcessGroup& /*group*/, const GradientBuckets& buckets, int64_t bucket) {
  if (error_) return {};
  std::vector<size_t> offsets, lengths;
  std::vector<c10::IntArrayRef> sizes;
  std::vector<at::Tensor> parameters;
  const Bucket& tensors = buckets.plan().buckets[static_cast<size_t>(bucket)];
  for (int64_t tensor = tensors.first; tensor < tensors.first + tensors.count; ++tensor) {
    const at::Tensor& parameter = buckets.parameter(tensor);
    offsets.push_back(static_cast<size_t>(buckets.offset(tensor)));
    lengths.push_back(static_cast<size_t>(parameter.numel()));
    sizes.push_back(parameter.sizes());
    parameters.push_back(parameter);
  }
  c10d::GradBucket seen(static_cast<size_t>(count_), futures_.size(), buckets.wire(bucket), std::move(offsets), std::move(lengths),
                        std::move(sizes), std::move(parameters), /*sparse_grad_indices=*/std::nullopt);
  c10::intrusive_ptr<Future>& future = futures_[static_cast<size_t>(bucket)];
  try {
    future = hook_->runHook(seen);
  } catch (const std::exception&) {
    error_ = std::current_exception();
    return {};
  }
  ++count_;
  const auto work = c10::make_intrusive<HookWork>();
  future->addCallback([work](Future& /*future*/) { work->complete(); }, /*uses_future=*/false);
  return {.work = work, .finish = {}};
}

void CommHookCalls::finish(const ProcessGroup& /*group*/, const GradientBuckets& buckets, int64_t bucket) {
  const at::NoGradGuard no_grad;
  const c10::intrusive_ptr<Future> future = futures_[static_cast<size_t>(bucket)];
  future->wait();  // on a device: the current streams wait
  if (future->hasError()) std::rethrow_exception(future->exception_ptr());
  const at::Tensor result = hook_->parseHookResult(future->value());
  const at::Tensor& buffer = buckets.wire(bucket);
  if (result.numel() != buffer.numel()) {
    throw InputError(
        fmt::format("the communication hook returned {} elements for a bucket of {}; expected as many", result.numel(), buffer.numel()));
  }
  if (!result.is_same(buffer)) buffer.copy_(result.reshape(buffer.sizes()));
}

}  // namespace firkin
