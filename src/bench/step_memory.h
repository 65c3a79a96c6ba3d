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

// ---- Of a training step

// What tensors hold, in bytes.
struct StepMemory {
  int64_t peak_bytes = 0;           // during the step: parameters, gradients, buckets, activations
  int64_t between_steps_bytes = 0;  // after it: parameters, gradients, buckets
};

// Of the second step (the first lays the buckets out), on the rank where it is most. Collective: every rank gets the same result. Leaves
// the gradients undefined. Throws what StepRunner throws.
StepMemory measure_step_memory(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options);

// Of a step on this rank alone: does the workload fit at all? No collective. Throws what an allocation that fails throws.
StepMemory measure_local_step_memory(Workload& workload);

// What `make` makes, if on every rank both what is estimated and what a step on that rank alone takes are at most `limit_bytes`; else
// nothing, and in `why_not` what was too much. Collective: every rank has the same answer. Throws what `make` and a step throw, except for
// memory.
std::optional<Workload> make_within_memory(const ProcessGroup& group, const std::function<Workload()>& make, int64_t estimated_bytes,
                                           int64_t limit_bytes, std::string& why_not);

}  // namespace firkin
