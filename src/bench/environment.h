// The machines that ranks run on, for the head of a result.
#pragma once

#include "firkin/comm/process_group.h"
#include "results/run.h"

namespace firkin {

// Fills in everything of `environment` except Firkin's version: LibTorch, threads, the group's size, device, backend
// and link, and the machines of all ranks. Collective.
void add_ranks(const ProcessGroup& group, Environment& environment);

}  // namespace firkin
