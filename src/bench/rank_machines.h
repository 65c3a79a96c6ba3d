// The machines and software that a measurement ran on, as results record them.
#pragma once

#include "firkin/comm/process_group.h"
#include "results/results.h"

namespace firkin {

// Fills in everything of `environment` except Firkin's version: LibTorch, threads, the group's size, device, backend
// and link, and the machines of all ranks. Collective.
void add_ranks(const ProcessGroup& group, Environment& environment);

}  // namespace firkin
