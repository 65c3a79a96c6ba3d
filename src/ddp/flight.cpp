#include "flight.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <stdexcept>

namespace firkin {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

void keep_for_current_stream(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), current_stream(tensor.device()));
}

void BucketFlight::join_writers(c10::Device device) {
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

void BucketFlight::expect(State state) const {
  if (state_ != state) throw std::logic_error("a gradient bucket is used out of order");
}

void BucketFlight::begin(const std::optional<c10::Stream>& timing) {
  expect(State::kConsumed);
  state_ = State::kFilling;
  missing_ = tensors_;
  timing_ = timing;
  arrived_at_ = {};
}

void BucketFlight::record_placed(c10::Device device) {
  expect(State::kFilling);
  if (!device.is_cpu()) {
    const c10::Stream stream = current_stream(device);
    auto known = std::ranges::find(writers_, stream, &Writer::stream);
    if (known == writers_.end()) known = writers_.insert(known, {.stream = stream, .event = c10::Event(device.type())});
    known->has_written = true;
  }
  if (--missing_ == 0) full_at_ = now();
}

void BucketFlight::launch(c10::Device device, c10::function_ref<Work()> start) {
  expect(State::kFilling);
  launched_at_ = now();
  reduction_ = start();
  device_ = device;
  if (event_ && device_.type() != event_->device_type()) event_.reset();
  *ended_at_ = 0;
  state_ = State::kInFlight;
  if (reduction_ == nullptr) return;
  if (!device_.is_cpu()) {
    if (!timing_) return;
    const auto sum = reduction_->getFuture();
    if (!sum->completed()) return;  // over Gloo, whose sums the CPU would have to wait for
    const c10::StreamGuard guard(*timing_);
    sum->wait();  // the stream waits, the CPU does not
    arrived_at_ = now();
    return;
  }
  reduction_->getFuture()->addCallback(
      [ended_at = ended_at_](c10::ivalue::Future& future) {
        if (!future.hasError()) *ended_at = Clock::now().time_since_epoch().count();
      },
      /*uses_future=*/false);
}

bool BucketFlight::is_pending() const {
  if (state_ != State::kInFlight || reduction_ == nullptr) return false;
  return device_.is_cpu() ? *ended_at_ == 0 : !reduction_->isCompleted();
}

bool BucketFlight::wait(const ProcessGroup& group, c10::function_ref<std::string()> what) {
  if (state_ == State::kReduced) {
    if (event_) event_->block(current_stream(device_));
    return false;
  }
  expect(State::kInFlight);
  if (reduction_ != nullptr) firkin::wait(group, reduction_, what);
  if (!device_.is_cpu()) {
    if (!event_) event_.emplace(device_.type());
    event_->record(current_stream(device_));
    if (timing_ && !arrived_at_.event) arrived_at_ = now();
  }
  Clock::rep unset = 0;  // the backend did not say when
  ended_at_->compare_exchange_strong(unset, Clock::now().time_since_epoch().count());
  reduction_ = nullptr;
  state_ = State::kReduced;
  return true;
}

BucketTimes BucketFlight::times() const {
  const DeviceTime ended{.host = Clock::time_point(Clock::duration(ended_at_->load())), .event = arrived_at_.event};
  return {.ready = missing_ == 0 ? full_at_ : launched_at_, .launched = launched_at_, .ended = ended};
}

void BucketFlight::consume() {
  expect(State::kReduced);
  state_ = State::kConsumed;
}

}  // namespace firkin
