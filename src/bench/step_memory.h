// How much memory tensors hold, and a training step takes.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "workload/workload.h"

namespace firkin {

// Counts the tensors that this process allocates on the device while the object lives, until they are freed; tensors
// from before are not counted. On a GPU the figures are those of LibTorch's caching allocator, which rounds up to 512
// bytes. On a CPU it takes the place of LibTorch's allocator meanwhile. One at a time; no other thread may begin to use
// tensors while it is made or destroyed. Costs a small allocation per tensor, so nothing is timed under it.
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

// ---- The memory of a training step

// What tensors hold, in bytes.
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

// What `make` makes, if on every rank both the estimate and what a step on that rank alone takes are at most
// `limit_bytes`; else nothing, and `why_not` says what was too much. Collective: every rank has the same answer. Throws
// what `make` and a step throw, except for memory.
std::optional<Workload> make_within_memory(const ProcessGroup& group, const std::function<Workload()>& make, int64_t estimated_bytes,
                                           int64_t limit_bytes, std::string& why_not);

}  // namespace firkin
