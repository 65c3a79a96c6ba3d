#include "current_stream.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace firkin {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void BucketWriters::note(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::Stream stream = current_stream(device);
  auto known = std::ranges::find(writers_, stream, &Writer::stream);
  if (known == writers_.end()) {
    writers_.push_back({.stream = stream, .event = c10::Event(device.type())});
    known = writers_.end() - 1;
  }
  known->has_written = true;
}

void BucketWriters::join(c10::Device device) {
  if (writers_.empty()) return;
  const c10::Stream current = current_stream(device);
  for (Writer& writer : writers_) {
    if (!writer.has_written) continue;
    writer.has_written = false;
    if (writer.stream == current) continue;
    writer.event.record(writer.stream);
    writer.event.block(current);
  }
}

StreamMark::StreamMark(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    const c10::Device device = tensor.device();
    if (device.is_cpu() || device.is_meta()) continue;
    if (std::ranges::find(places_, device, &Place::device) != places_.end()) continue;
    places_.push_back({.device = device, .event = c10::Event(device.type())});
  }
}

void StreamMark::follow(const Place& place, const c10::Stream& current) {
  if (place.stream && *place.stream != current) place.event.block(current);
}

void StreamMark::set() {
  for (Place& place : places_) {
    const c10::Stream current = current_stream(place.device);
    follow(place, current);
    place.event.record(current);
    place.stream = current;
  }
}

void StreamMark::follow() {
  for (const Place& place : places_) follow(place, current_stream(place.device));
}

void StreamMark::follow(c10::Device device) {
  for (const Place& place : places_) {
    if (place.device == device) follow(place, current_stream(device));
  }
}

}  // namespace firkin
