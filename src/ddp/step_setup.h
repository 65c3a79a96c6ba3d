// What the steps of a wrapped module need: the module, the connections, the options, the parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/module_parameters.h"
#include "reduction.h"

namespace firkin {

// Only `parameters` and `initial_order` ever change, and only between steps.
struct StepSetup {
  torch::nn::Module* module = nullptr;
  ProcessGroup group;    // carries the gradients, and nothing else
  ProcessGroup control;  // the same ranks over other connections, for all else: small messages must not wait behind buckets
  DataParallelOptions options;
  std::shared_ptr<Reduction> reduction = nullptr;
  std::vector<NamedTensor> parameters;  // the trained ones
  // The order of parameters until a step has shown in which order their gradients become ready.
  std::vector<int64_t> initial_order;
};

}  // namespace firkin
