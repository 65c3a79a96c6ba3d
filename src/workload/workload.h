// What a benchmark steps, any module with a loss and an optimiser; and when its work was done.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/device_time.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace firkin {

struct Workload {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;            // the module's
  std::function<at::Tensor(int64_t step)> loss;  // forward on this rank's part of the step's batch; a scalar
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  // In place of both: one training step as its user wrote it, with one backward pass in it and nothing that synchronises gradients.
  std::function<void()> whole_step = {};
};

// The phases (trace/) of a step.
inline constexpr const char* kStepPhase = "step";          // all of it
inline constexpr const char* kBackwardPhase = "backward";  // and parts of it
inline constexpr const char* kOptimizerPhase = "optimiser";
inline constexpr const char* kForwardWaitPhase = "forward waits";  // strategy ordered

// Gradients of all parameters become undefined: what zero_grad() does, less its detach_(), which gradients that are views of a
// c10d::Reducer's buckets refuse.
void forget_gradients(const Workload& workload);

// Of its parameters.
c10::Device device_of(const Workload& workload);

}  // namespace firkin
