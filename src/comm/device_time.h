// When work was done: by the clock of a CPU, or by events that are queued behind the work on a device.
//
//   const DeviceTime started = device_now(device);
//   work();
//   seconds_between(started, device_now(device));  // of the work, not of queueing it
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace firkin {

struct DeviceTime {
  std::chrono::steady_clock::time_point host;   // when it was asked for
  std::shared_ptr<c10::Event> event = nullptr;  // on the device's stream; none for a CPU
};

// The time at which everything that is queued on the current stream has run. Does not wait.
inline DeviceTime device_now(c10::Device device) {
  DeviceTime now{.host = std::chrono::steady_clock::now()};
  if (device.is_cpu()) return now;
  now.event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // an event that keeps its time
  now.event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return now;
}

// Both times must be of one device. Waits until the device has reached both.
inline double seconds_between(const DeviceTime& from, const DeviceTime& to) {
  if (to.event == nullptr) return std::chrono::duration<double>(to.host - from.host).count();
  constexpr double kMillisecond = 1e-3;
  to.event->synchronize();
  from.event->synchronize();  // it may be on another stream
  return from.event->elapsedTime(*to.event) * kMillisecond;
}

// ---- Moments and waits by a device's own clock. They are queued on a stream like any other work, so that no thread of the
// CPU waits for them.
//
//   const Moment began = timer->stamp();  // when the current stream has come to here
//   work();
//   timer->wait({began, 5e-3});          // goes on 5 ms after that, or at once if `work` took longer

// The clock of one device. To use a moment on another stream, order the streams by an event. Not thread-safe.
class DeviceTimer {
 public:
  // Moments are kept on the device; the newest replaces the oldest.
  using Moment = int64_t;
  static constexpr int64_t kMoments = int64_t{1} << 16;

  struct After {
    Moment moment = 0;
    double seconds = 0;
  };

  virtual ~DeviceTimer() = default;

  // The moment at which all is done that was queued on the current stream before.
  virtual Moment stamp() = 0;

  // Makes the current stream wait until the later of the two. Returns that moment, and not the one at which the stream
  // went on, so that the delays of consecutive waits do not add up.
  virtual Moment wait(After first, std::optional<After> second = std::nullopt) = 0;
};

// A wait is a kernel of one thread that reads the global timer of the GPU, whose rate does not change with the GPU's
// clock. name: traces show the kernel as name_wait. sms: if not 0, a wait is so many blocks of one thread, each with
// all shared memory of a multiprocessor, so that nothing else runs there (before compute capability 8.0: nothing else
// that uses shared memory). A block starts only when the work on its multiprocessor has ended, so a wait may begin, and
// end, late.
//
// Throws InputError for another device, for more multiprocessors than it has, and where Firkin was built without CUDA
// 12.8 or newer.
std::unique_ptr<DeviceTimer> make_device_timer(c10::Device device, const std::string& name, int sms = 0);

inline constexpr const char* kLinkTimer = "modelled_link";

}  // namespace firkin
