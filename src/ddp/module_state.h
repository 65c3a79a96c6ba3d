// The state of a module, made equal across ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "firkin/comm/process_group.h"

namespace firkin {

// The root's values to all ranks. Tensors of one dtype travel together, up to 64 MiB at a time. Collective.
void broadcast_together(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace firkin
