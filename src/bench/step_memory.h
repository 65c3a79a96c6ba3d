// The memory that a training step takes: of its tensors, on the rank that needs most.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/options.h"
#include "workload/workload.h"

namespace firkin {

// Counts the memory of tensors that this process allocates on the device while the object lives. On a GPU the figures
// are those of LibTorch's caching allocator, which rounds up to 512 bytes; on a CPU this replaces LibTorch's allocator,
// at a small allocation per tensor, so time nothing under it. One at a time; no other thread may begin to use tensors
// while it is made or destroyed.
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
  int64_t before_bytes_ = 0;  // on a GPU: allocated before this object was made
};

struct StepMemory {
  int64_t peak_bytes = 0;           // during the step: parameters, gradients, buckets, activations
  int64_t between_steps_bytes = 0;  // after it: parameters, gradients, buckets
};

// The memory of the second step (the first lays the buckets out), on the rank that needs most. Collective: every rank
// gets the same result. Leaves the gradients undefined. Throws what StepRunner throws.
StepMemory measure_step_memory(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options);

// The memory of a step on this rank alone, to see whether the workload fits at all. Not collective. Throws what a
// failing allocation throws.
StepMemory measure_local_step_memory(Workload& workload);

// Returns what `make` returns if, on every rank, both the estimate and the memory of a local step are at most
// `limit_bytes`; else nothing, and `why_not` says what exceeded it. Collective: every rank has the same answer. Throws
// what `make` and a step throw, except for memory.
std::optional<Workload> make_within_memory(const ProcessGroup& group, const std::function<Workload()>& make, int64_t estimated_bytes,
                                           int64_t limit_bytes, std::string& why_not);

}  // namespace firkin
