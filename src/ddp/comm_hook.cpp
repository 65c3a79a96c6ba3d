#include "comm_hook.h"

#include <ATen/core/grad_mode.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using c10::ivalue::Future;

// Completes when the hook's future does, without its error. Unlike c10d's own wrapper of a future it can be waited for with a timeout, so
// that firkin::wait() can look out for ranks that have died.
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

}  // namespace

GradientHook comm_hook(std::string name, std::shared_ptr<c10d::CommHookInterface> hook) {
  return {.name = std::move(name), .start = nullptr, .comm_hook = std::move(hook)};
}

void CommHookCalls::begin() {
  futures_.clear();
  error_ = nullptr;
}

BucketReduction CommHookCalls::start(c10d::GradBucket bucket) {
  if (error_) return {};
  try {
    futures_.push_back(hook_->runHook(bucket));
  } catch (const std::exception&) {
    error_ = std::current_exception();
    return {};
  }
  const auto work = c10::make_intrusive<HookWork>();
  futures_.back()->addCallback([work](Future& /*future*/) { work->complete(); }, /*uses_future=*/false);
  return {.work = work, .finish = {}};
}

void CommHookCalls::write_result(size_t call, const at::Tensor& buffer) {
  const at::NoGradGuard no_grad;
  const c10::intrusive_ptr<Future> future = futures_[call];
  future->wait();  // on a device: the current streams wait
  if (future->hasError()) std::rethrow_exception(future->exception_ptr());
  const at::Tensor result = hook_->parseHookResult(future->value());
  if (result.numel() != buffer.numel()) {
    throw InputError(
        fmt::format("the communication hook returned {} elements for a bucket of {}; expected as many", result.numel(), buffer.numel()));
  }
  if (!result.is_same(buffer)) buffer.copy_(result.reshape(buffer.sizes()));
}

}  // namespace firkin
