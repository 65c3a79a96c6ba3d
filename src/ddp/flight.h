// One bucket on its way through the steps, and when its sum has arrived: a future on a CPU, an event on a device. Also
// the streams of devices.
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

// A point in the devices' work: after what was queued on the streams that were current at set(), and on those of every
// set() before. A stream that continues from there calls follow() first. Not thread-safe.
class StreamMark {
 public:
  // For the devices of these tensors.
  explicit StreamMark(const std::vector<at::Tensor>& tensors);

  void set();
  // Makes what is queued from now on, on the current streams or on that of one device, come after the mark. Costs one
  // comparison on the stream that set it.
  void follow();
  void follow(c10::Device device);

 private:
  struct Place {
    c10::Device device;
    std::optional<c10::Stream> stream = std::nullopt;  // the stream that set it last; none: never set
    c10::Event event;
  };
  static void follow(const Place& place, const c10::Stream& current);

  std::vector<Place> places_;
};

// Whether profilers record collectives that may end after backward. PyTorch 2.13's profiler crashes if it stops while a
// collective that it recorded is still running. Set this only where profiling stops after drain().
inline std::atomic<bool> late_collectives_are_recorded = false;

// A bucket's way through a step.
struct BucketTimes {
  DeviceTime ready;  // the last of its gradients was in it; `launched` if backward has not filled it
  DeviceTime launched;
  DeviceTime ended;  // its sum was there
};

//   filling --launch()--> in flight --wait()--> reduced --consume()--> filling, in the next step
//
// Lives as long as its bucket; allocates nothing from step to step. A call out of order is a bug in Firkin and throws
// std::logic_error. Not thread-safe.
class BucketFlight {
 public:
  using Clock = std::chrono::steady_clock;

  explicit BucketFlight(int64_t tensors) : tensors_(tensors), missing_(tensors) {}

  bool is_full() const { return missing_ == 0; }
  bool is_consumed() const { return state_ == State::kConsumed; }
  // Whether it was launched and its sum is not known to have arrived. Never blocks.
  bool is_pending() const;

  // timing: in a step that is timed by a device's events, a stream of that device, which is made to wait for the sum.
  void begin(const std::optional<c10::Stream>& timing);
  // Notes that one of its gradients is in the bucket, written there by what is queued on the current stream of this
  // device.
  void record_placed(c10::Device device);
  // Call it before launch(): on a device, makes what is queued on the current stream from now on come after all writing
  // into the bucket. Takes an event for every stream but the current one; none in the usual case of one stream.
  void join_writers(c10::Device device);
  // start: sends the bucket, which is on this device. Null: nothing has to be waited for.
  void launch(c10::Device device, c10::function_ref<Work()> start);

  // On a CPU, blocks until the sum is there. On a device, makes the current stream wait for it; call it again for
  // another stream. Throws what firkin::wait() throws. Returns whether it was the first call.
  bool wait(const ProcessGroup& group, c10::function_ref<std::string()> what);
  void consume();

  // After wait(). The CPU's times are when it queued what a device was to do; for `ended`, when it made the stream wait.
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
  int64_t missing_;  // gradients that are not in the bucket yet
  std::optional<c10::Stream> timing_;
  DeviceTime full_at_, launched_at_;
  DeviceTime arrived_at_;  // in a step that is timed by events
  std::vector<Writer> writers_;
  Work reduction_;  // in flight
  c10::Device device_ = c10::kCPU;
  std::optional<c10::Event> event_;  // on a device: after the first wait()
  // Shared with the backend, which may still write to it after a failed step.
  std::shared_ptr<std::atomic<Clock::rep>> ended_at_ = std::make_shared<std::atomic<Clock::rep>>(0);
};

}  // namespace firkin
