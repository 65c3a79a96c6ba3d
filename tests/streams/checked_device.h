// A device that is the CPU in disguise, with as many streams as one likes, for tests of what must be in order on a GPU: c10's device
// PrivateUse1, under the name "checked". Its operations run on the CPU at once, and tell the clocks (clocks.h) what they read and write.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <string>

#include "clocks.h"

namespace firkin::streams {

inline constexpr c10::DeviceIndex kCheckedDevices = 4;  // a rank has one of its own

// Once in a process, before its first tensor on such a device.
void register_checked_device();

inline c10::Device checked_device(int index) {
  return {c10::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

// One that nobody uses yet.
c10::Stream new_stream(c10::Device device);
// Of this thread.
c10::Stream current_stream_of(c10::Device device);

// What is queued on `later` from now on comes after what is queued on `earlier`.
void wait_for(const c10::Stream& later, const c10::Stream& earlier);

inline StreamKey key_of(const c10::Stream& stream) {
  return stream.device_index() * 0x1000 + static_cast<StreamKey>(stream.id());
}

// How many events that keep time were recorded so far.
int64_t timing_events();

// An operation on the tensor's device, on the current stream or on this one.
void begin_operation(c10::Device device, const std::string& name);
void touch(const at::Tensor& tensor, bool writes, bool lasts = true);

// The same memory as a tensor of the CPU.
at::Tensor alias_on_cpu(const at::Tensor& tensor);

}  // namespace firkin::streams
