// Before anything is sent: do all ranks mean the same by it?
#pragma once

#include <string>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

// One line for each thing that ranks must agree on: options (all but the timeout, and what only rank 0 uses), then every parameter and
// buffer of the module.
std::vector<std::string> describe(const DataParallelOptions& options, const torch::nn::Module& module);

// Throws RuntimeError on every rank unless all have the same lines, naming the first that differs from rank 0's and both versions. A rank
// that cannot go on gives its reason as `problem`: then every rank throws, that one `problem` itself as InputError. Collective.
void agree_at_construction(const ProcessGroup& group, const std::vector<std::string>& lines, const std::string& problem);

}  // namespace firkin
