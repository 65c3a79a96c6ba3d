// How many bytes tensors hold, as their allocator counts them.
#pragma once

#include <cstdint>

namespace firkin {

// Counts the CPU tensors that this process allocates while the object lives, and what becomes of these; tensors from before are not
// counted. Stands in LibTorch's place as the CPU allocator meanwhile. One at a time; no other thread may begin to use tensors while it is
// made or destroyed. Costs a small allocation per tensor, so nothing is timed under it.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t now_bytes() const;
  int64_t peak_bytes() const;  // the most since construction or reset_peak()
  void reset_peak();
};

}  // namespace firkin
