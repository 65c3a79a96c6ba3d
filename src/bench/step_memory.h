// How much memory a training step takes.
#pragma once

#include <cstdint>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "workload/workload.h"

namespace firkin {

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

}  // namespace firkin
