#include "bucket_flight.h"

#include <stdexcept>

namespace firkin {

void BucketFlight::expect(State state) const {
  if (state_ != state) throw std::logic_error("a gradient bucket is used out of order");
}

void BucketFlight::begin(int64_t step) {
  expect(State::kConsumed);
  state_ = State::kFilling;
  step_ = step;
  missing_ = tensors_;
}

void BucketFlight::tensor_placed(c10::Device device) {
  expect(State::kFilling);
  writers_.note(device);
  --missing_;
}

void BucketFlight::launch(const ProcessGroup& group, const GradientHook& hook, const at::Tensor& wire) {
  expect(State::kFilling);
  launched_at_ = Clock::now();
  completion_.watch(hook.start(group, wire), wire.device());
  state_ = State::kInFlight;
}

void BucketFlight::wait(const ProcessGroup& group, c10::function_ref<std::string()> what) {
  if (state_ == State::kReduced) return;
  expect(State::kInFlight);
  completion_.wait(group, what);
  state_ = State::kReduced;
}

void BucketFlight::consume() {
  expect(State::kReduced);
  state_ = State::kConsumed;
}

}  // namespace firkin
