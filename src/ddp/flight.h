// One bucket's way through each step, and the order of work on the streams of devices.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/device_time.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// This thread's current stream of a device that is no CPU.
c10::Stream current_stream(c10::Device device);

// Tells the allocator that the current stream uses the tensor: its memory must not be reused before this stream is done
// with it. Does nothing on a CPU.
void keep_for_current_stream(const at::Tensor& tensor);

// A point in the devices' work. It lies behind everything that was queued, at any set(), on the streams that were
// current then. What is queued after follow() runs behind that point. Not thread-safe.
class StreamMark {
 public:
  // For the devices of these tensors.
  explicit StreamMark(const std::vector<at::Tensor>& tensors);

  void set();
  // For the current streams of all devices, or of one. Costs one comparison on the stream that has set the mark.
  void follow();
  void follow(c10::Device device);

 private:
  struct Place {
    c10::Device device;
    std::optional<c10::Stream> stream = std::nullopt;  // the stream that has set the mark last; none: never set
    c10::Event event;
  };
  static void follow(const Place& place, const c10::Stream& current);

  std::vector<Place> places_;
};

// Note [Late collectives in a profile]
// PyTorch 2.13's profiler crashes if it stops while a collective that it has recorded is still running. Under `ordered`
// and `sharded` collectives may run until the next step begins, and a program may stop its profiler at any time before.
// So profilers do not see these collectives, unless this is set. Set it only in a program that calls
// DataParallel::drain() before its profiler stops.
inline std::atomic<bool> late_collectives_are_recorded = false;

// When a bucket was where in a step.
struct BucketTimes {
  DeviceTime ready;  // the last of its gradients was placed; the same as `launched` if backward has not filled it
  DeviceTime launched;
  DeviceTime ended;  // its sum had arrived
};

//   filling --launch()--> in flight --wait()--> reduced --consume()--> filling, in the next step
//
// Lives as long as its bucket, and allocates nothing in a step. A call out of this order throws std::logic_error: it is
// a bug in Firkin. Not thread-safe.
class BucketFlight {
 public:
  using Clock = std::chrono::steady_clock;

  explicit BucketFlight(int64_t tensors) : tensors_(tensors), missing_(tensors) {}

  bool is_full() const { return missing_ == 0; }
  bool is_consumed() const { return state_ == State::kConsumed; }
  // Whether the bucket was launched and its sum is not known to have arrived. Never blocks.
  bool is_pending() const;

  // timing: for a step that is timed by a device's events, a stream of that device. It is made to wait for the sum.
  void begin(const std::optional<c10::Stream>& timing);
  // One more of the bucket's gradients is placed, by what is queued on this device's current stream.
  void record_placed(c10::Device device);
  // Call it before launch(). What is queued on the device's current stream from now on runs behind all writing into the
  // bucket. Records an event for every other stream that has written into it; usually there is none.
  void join_writers(c10::Device device);
  // start: launches the bucket, which is on this device; returns null if there is nothing to wait for.
  void launch(c10::Device device, c10::function_ref<Work()> start);

  // On a CPU, blocks until the sum has arrived. On a device, makes the current stream wait for it; call it again for
  // another stream. Throws what firkin::wait() throws. Returns whether it is the first call in this step.
  bool wait(const ProcessGroup& group, c10::function_ref<std::string()> what);
  void consume();

  // After wait(). On a device, a time's `host` says when the CPU has queued the work; for `ended`, when it has made the
  // stream wait.
  BucketTimes times() const;

 private:
  enum class State { kConsumed, kFilling, kInFlight, kReduced };
  // A stream that writes into the bucket.
  struct Writer {
    c10::Stream stream;
    c10::Event event;
    bool has_written = false;  // since the bucket was sent last
  };
  void expect(State state) const;
  // On the current stream, if this step is timed by events.
  DeviceTime now() const { return device_now(timing_ ? timing_->device() : c10::kCPU); }

  State state_ = State::kConsumed;
  int64_t tensors_;
  int64_t missing_;  // gradients that are not placed yet
  std::optional<c10::Stream> timing_;
  DeviceTime full_at_, launched_at_;
  DeviceTime arrived_at_;  // only in a step that is timed by events
  std::vector<Writer> writers_;
  Work reduction_;  // while in flight
  c10::Device device_ = c10::kCPU;
  std::optional<c10::Event> event_;  // on a device, after the first wait(): the sum has arrived
  // Shared with the backend's callback, which may come after a failed step.
  std::shared_ptr<std::atomic<Clock::rep>> ended_at_ = std::make_shared<std::atomic<Clock::rep>>(0);
};

}  // namespace firkin
