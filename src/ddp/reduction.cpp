#include "reduction.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <optional>
#include <string>

#include "comm/backends.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

using c10::ivalue::Future;

}  // namespace

GradientHook bf16_compression() {
  return {.name = "bf16", .wire_dtype = at::kBFloat16};
}
GradientHook fp16_compression() {
  return {.name = "fp16", .wire_dtype = at::kHalf};
}
GradientHook comm_hook(std::string name, std::shared_ptr<c10d::CommHookInterface> hook) {
  return {.name = std::move(name), .comm_hook = std::move(hook)};
}

std::shared_ptr<Reduction> make_reduction(const GradientHook& hook) {
  if (hook.comm_hook) return std::make_shared<CommHookReduction>(hook.comm_hook);
  return std::make_shared<AllReduction>();
}

void CommHookReduction::begin(const GradientBuckets& buckets) {
  futures_.assign(static_cast<size_t>(buckets.bucket_count()), nullptr);
  started_ = 0;
  error_ = nullptr;
}

Work CommHookReduction::start(const ProcessGroup& /*group*/, const GradientBuckets& buckets, int64_t bucket) {
  if (error_) return nullptr;
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
  c10d::GradBucket argument(static_cast<size_t>(started_), futures_.size(), buckets.wire(bucket), std::move(offsets), std::move(lengths),
                            std::move(sizes), std::move(parameters), /*sparse_grad_indices=*/std::nullopt);
  c10::intrusive_ptr<Future>& future = futures_[static_cast<size_t>(bucket)];
  try {
    future = hook_->runHook(argument);
  } catch (const std::exception&) {
    error_ = std::current_exception();
    return nullptr;
  }
  ++started_;
  // An OwnWork can be waited for with a timeout, so that firkin::wait() polls for ranks that have died; the work that
  // c10d makes of a future (in PyTorch 2.13) cannot. An error of the future is left to finish().
  const auto work = c10::make_intrusive<OwnWork>(0, c10d::OpType::ALLREDUCE, nullptr, std::vector<at::Tensor>{});
  future->addCallback([work](Future& /*future*/) { work->complete(nullptr); }, /*uses_future=*/false);
  return work;
}

void CommHookReduction::finish(const ProcessGroup& /*group*/, const GradientBuckets& buckets, int64_t bucket) {
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
