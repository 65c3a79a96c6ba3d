#include "firkin/bench/tensor_memory.h"

#include <algorithm>
#include <mutex>

namespace firkin {

struct TensorMemory::Counter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* /*ptr*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/, c10::Device /*device*/) override {
    const std::lock_guard lock(mutex);
    now += size;
    peak = std::max(peak, now);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::mutex mutex;  // backward on a GPU runs on a thread of its own
  int64_t now = 0;
  int64_t peak = 0;
};

TensorMemory::TensorMemory() : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t TensorMemory::now_bytes() const {
  const std::lock_guard lock(counter_->mutex);
  return counter_->now;
}

int64_t TensorMemory::peak_bytes() const {
  const std::lock_guard lock(counter_->mutex);
  return counter_->peak;
}

void TensorMemory::reset_peak() {
  const std::lock_guard lock(counter_->mutex);
  counter_->peak = counter_->now;
}

}  // namespace firkin
