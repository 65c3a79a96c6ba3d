// What a benchmark trains: any module with a loss and an optimiser.
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
  // In place of loss and optimiser: one training step as its user wrote it, with one backward pass in it and nothing
  // that synchronises gradients.
  std::function<void()> whole_step = {};
};

// The phases (trace/) of a step.
inline constexpr const char* kStepPhase = "step";          // the whole step
inline constexpr const char* kBackwardPhase = "backward";  // parts of it, like those below
inline constexpr const char* kOptimizerPhase = "optimiser";
inline constexpr const char* kForwardWaitPhase = "forward waits";  // strategy ordered

// Makes all gradients undefined. Like zero_grad() without its detach_(), which fails on gradients that are views of a
// c10d::Reducer's buckets.
inline void forget_gradients(const Workload& workload) {
  for (const at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
}

// The device of the workload's parameters.
inline c10::Device device_of(const Workload& workload) {
  return workload.parameters.empty() ? c10::Device(c10::kCPU) : workload.parameters[0].device();
}

}  // namespace firkin
