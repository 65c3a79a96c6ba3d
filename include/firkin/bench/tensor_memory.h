// How many bytes tensors hold, as the allocator counts them.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>

namespace firkin {

// Counts what this thread, and backward on its behalf, allocates and frees while the object lives, on any device. What was there before
// is not counted and should not be freed meanwhile: LibTorch does not know its size. Costs a lock per allocation, so nothing is timed
// under it. One at a time per thread; it replaces a running LibTorch profiler.
class TensorMemory {
 public:
  TensorMemory();

  int64_t now_bytes() const;   // live since construction
  int64_t peak_bytes() const;  // the most since construction or reset_peak()
  void reset_peak();

 private:
  struct Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace firkin
