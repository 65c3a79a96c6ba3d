// How many bytes tensors hold, as their allocator counts them.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace firkin {

// Counts the tensors that this process allocates on the device while the object lives, and what becomes of these; tensors from before are
// not counted. On a GPU LibTorch's caching allocator counts, which rounds up to 512 bytes. On a CPU it stands in LibTorch's place as the
// allocator meanwhile. One at a time; no other thread may begin to use tensors while it is made or destroyed. Costs a small allocation per
// tensor, so nothing is timed under it.
class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device = c10::kCPU);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t now_bytes() const;
  int64_t peak_bytes() const;  // the most since construction or reset_peak()
  void reset_peak();

 private:
  c10::Device device_;
  int64_t before_bytes_ = 0;  // on a GPU
};

}  // namespace firkin
