// Streams of any device: others than the current one.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace firkin {

// One that nobody uses yet.
inline c10::Stream new_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getNewStream(device);
}

// Of this thread.
inline c10::Stream current_stream_of(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// What is queued on `later` from now on comes after what is queued on `earlier`.
inline void wait_for(const c10::Stream& later, const c10::Stream& earlier) {
  c10::Event event(later.device_type());
  event.record(earlier);
  event.block(later);
}

}  // namespace firkin
