#include "completion.h"

#include "current_stream.h"

namespace firkin {

Completion::~Completion() {
  // A step that failed may be forgotten before the backend is done with it; then the backend keeps the few bytes that it will write to.
  // (On a device it writes nothing.)
  if (device_.is_cpu() && ended_at_ != nullptr && is_pending()) static_cast<void>(ended_at_.release());
}

void Completion::watch(BucketReduction reduction, c10::Device device) {
  reduction_ = std::move(reduction);
  device_ = device;
  if (event_ && device.type() != event_->device_type()) event_.reset();
  is_under_way_ = true;
  *ended_at_ = 0;
  if (reduction_.work == nullptr || !device.is_cpu()) return;
  reduction_.work->getFuture()->addCallback(
      [ended_at = ended_at_.get()](c10::ivalue::Future& future) {
        if (!future.hasError()) *ended_at = Clock::now().time_since_epoch().count();
      },
      /*uses_future=*/false);
}

bool Completion::is_pending() const {
  if (!is_under_way_ || reduction_.work == nullptr) return false;
  return device_.is_cpu() ? *ended_at_ == 0 : !reduction_.work->isCompleted();
}

void Completion::wait(const ProcessGroup& group, c10::function_ref<std::string()> what) {
  if (!is_under_way_) {
    if (event_) event_->block(current_stream(device_));
    return;
  }
  if (reduction_.finish) reduction_.finish();
  if (reduction_.work != nullptr) firkin::wait(group, reduction_.work, what);
  is_under_way_ = false;
  if (!device_.is_cpu()) {
    if (!event_) event_.emplace(device_.type());
    event_->record(current_stream(device_));
  }
  Clock::rep unset = 0;  // the backend did not say when
  ended_at_->compare_exchange_strong(unset, Clock::now().time_since_epoch().count());
  reduction_ = {};
}

}  // namespace firkin
