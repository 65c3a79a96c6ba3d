// One bucket on its way through the steps.
#pragma once

#include <cstdint>

#include "completion.h"
#include "current_stream.h"

namespace firkin {

//   filling --launched--> in flight --wait()--> reduced --consumed--> filling, in the next step
//
// A call out of order is a mistake of ours and throws std::logic_error. Not thread-safe.
class BucketFlight {
 public:
  using Clock = Completion::Clock;
  enum class State { kConsumed, kFilling, kInFlight, kReduced };

  explicit BucketFlight(int64_t tensors) : tensors_(tensors), missing_(tensors) {}

  State state() const { return state_; }
  int64_t step() const { return step_; }  // that it fills in, or filled in last
  bool is_full() const { return missing_ == 0; }
  bool is_pending() const { return completion_.is_pending(); }

  void begin(int64_t step);
  // One of its gradients is in the bucket, on this device: written there by what is queued on the current stream.
  void tensor_placed(c10::Device device);
  // Before launch(): on a device, what is queued on the current stream from now on comes after all writing into the bucket.
  void join_writers(c10::Device device) { writers_.join(device); }
  // What travels is `wire`, whole or not.
  void launch(const ProcessGroup& group, const GradientHook& hook, const at::Tensor& wire);
  // Waits for the sum; does nothing when it is there already. Throws as Completion::wait() does.
  void wait(const ProcessGroup& group, c10::function_ref<std::string()> what);
  void consume();

  Clock::time_point launched_at() const { return launched_at_; }
  Clock::time_point ended_at() const { return completion_.ended_at(); }

 private:
  void expect(State state) const;

  State state_ = State::kConsumed;
  int64_t step_ = -1;
  int64_t tensors_;
  int64_t missing_;  // gradients that are not in the bucket yet
  Clock::time_point launched_at_;
  BucketWriters writers_;
  Completion completion_;
};

}  // namespace firkin
