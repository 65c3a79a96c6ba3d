// The machines that ranks run on, for the head of a result.
#pragma once

#include <string>

#include "firkin/comm/process_group.h"
#include "results/run.h"

namespace firkin {

// The machine of this process, as it is now.
Host this_host();

// Everything of `environment` but Firkin's version: LibTorch, threads, the group's size and link, and the machines of all ranks.
// Collective.
void add_ranks(const ProcessGroup& group, const std::string& backend, Environment& environment);

}  // namespace firkin
