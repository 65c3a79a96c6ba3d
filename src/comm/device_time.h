// When work was done: on a CPU by its clock; on a device by events that are queued behind the work.
//
//   const DeviceTime started = device_now(device);
//   work();
//   seconds_between(started, device_now(device));  // of the work, not of queueing it
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>
#include <memory>

namespace firkin {

struct DeviceTime {
  std::chrono::steady_clock::time_point host;   // when it was asked for
  std::shared_ptr<c10::Event> event = nullptr;  // on the device's stream; none for a CPU
};

// The time at which all that is queued on the current stream has run. Waits for nothing.
inline DeviceTime device_now(c10::Device device) {
  DeviceTime now{.host = std::chrono::steady_clock::now()};
  if (device.is_cpu()) return now;
  now.event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);  // one that keeps time
  now.event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return now;
}

// Both must be of one device. Waits until the device has come to both.
inline double seconds_between(const DeviceTime& from, const DeviceTime& to) {
  if (to.event == nullptr) return std::chrono::duration<double>(to.host - from.host).count();
  constexpr double kMillisecond = 1e-3;
  to.event->synchronize();
  from.event->synchronize();  // it may be of another stream
  return from.event->elapsedTime(*to.event) * kMillisecond;
}

}  // namespace firkin
