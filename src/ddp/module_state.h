// The state of a module, compared and made equal across ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Throws RuntimeError on every rank, naming the first parameter that differs from rank 0's, unless all ranks have the same list: names,
// shapes, dtypes and strides. Collective.
void check_agreement(const ProcessGroup& group, const std::vector<NamedTensor>& parameters);

// The root's values to all ranks. Tensors of one dtype travel together, up to 64 MiB at a time. Collective.
void broadcast_together(const ProcessGroup& group, const std::vector<at::Tensor>& tensors, int root);

}  // namespace firkin
