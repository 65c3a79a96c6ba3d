// Collectives on the checked device, as NCCL orders them: on a stream of their own, behind what the current one has queued, and wait()
// makes the current stream wait. The data go over Gloo.
#pragma once

#include "firkin/comm/process_group.h"

namespace firkin::streams {

// A group with Gloo for the CPU, and for the checked device what is described above. Without `device`, each rank has one of its own.
ProcessGroup with_checked_device(const ProcessGroup& group, c10::Device device);
ProcessGroup with_checked_device(const ProcessGroup& group);

}  // namespace firkin::streams
