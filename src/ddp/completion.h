// When a bucket's sum is there: a future on a CPU, an event on a device.
#pragma once

#include <c10/core/Event.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "firkin/ddp/gradient_hook.h"

namespace firkin {

// Lives as long as its bucket and is used once a step; allocates nothing in between. Not thread-safe, but for the backend's thread, which
// notes the end.
class Completion {
 public:
  using Clock = std::chrono::steady_clock;

  Completion() : ended_at_(std::make_unique<std::atomic<Clock::rep>>(0)) {}
  Completion(Completion&&) = default;
  Completion& operator=(Completion&&) = delete;
  ~Completion();

  // The reduction has been started, on tensors of this device.
  void watch(BucketReduction reduction, c10::Device device);

  // On a CPU: blocks until the sum is there. On a device: lets the current stream wait for it. Throws as firkin::wait() does, or what the
  // reduction's `finish` throws. May be called again, from another stream as well.
  void wait(const ProcessGroup& group, c10::function_ref<std::string()> what);

  // A reduction that was watched is not known to have ended. Never blocks.
  bool is_pending() const;

  // When the sum was there, as far as the CPU knows: on a device when the stream was made to wait.
  Clock::time_point ended_at() const { return Clock::time_point(Clock::duration(ended_at_->load())); }

 private:
  BucketReduction reduction_;
  c10::Device device_ = c10::kCPU;
  std::optional<c10::Event> event_;  // on a device: after the first wait()
  std::unique_ptr<std::atomic<Clock::rep>> ended_at_;
  bool is_under_way_ = false;
};

}  // namespace firkin
