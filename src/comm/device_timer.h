// Times and waits on the streams of a device, by the device's own clock: queued there like any other work, so that no
// thread of the CPU waits for it.
//
//   const Moment began = timer->note();  // when the current stream has come to here
//   work();
//   timer->wait({began, 5e-3});          // goes on 5 ms after that, or at once if `work` took longer
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace firkin {

// For one device. Not thread-safe. To use a moment on another stream, order the streams with an event.
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
  virtual Moment note() = 0;

  // Makes the current stream wait until the later of the two. Returns that moment, not when the stream went on, so that
  // the delays of consecutive waits do not add up.
  virtual Moment wait(After first, std::optional<After> second = std::nullopt) = 0;
};

// Waits are a kernel of one thread on the global timer of the GPU, whose rate does not change with its clock's. name:
// what traces call it, followed by _wait. Throws InputError for another device, and where Firkin was built without CUDA
// 12.8 or newer.
std::unique_ptr<DeviceTimer> make_device_timer(c10::Device device, const std::string& name);

inline constexpr const char* kLinkTimer = "modelled_link";

}  // namespace firkin
