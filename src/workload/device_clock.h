// When work was done: on a CPU as its clock says; on a device when it was queued then, and has run, as events say.
//
//   const DeviceTime started = device_now(device);
//   work();
//   seconds_between(started, device_now(device));  // of the work, not of queueing it
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <memory>

namespace firkin {

struct DeviceTime {
  std::chrono::steady_clock::time_point host;   // when it was asked for
  std::shared_ptr<c10::Event> event = nullptr;  // on the device's stream; none for a CPU
};

// Behind all that is queued on the current stream. Waits for nothing.
DeviceTime device_now(c10::Device device);

// Both of one device. Waits until it has come to `to`.
double seconds_between(const DeviceTime& from, const DeviceTime& to);

}  // namespace firkin
