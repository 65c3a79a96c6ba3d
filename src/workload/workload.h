// What a benchmark trains: any module with a loss and an optimiser.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/device_time.h"
#include "firkin/plan/measurements.h"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

namespace firkin {

struct Workload {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;            // the module's
  std::function<at::Tensor(int64_t step)> loss;  // forward on this rank's part of the step's batch; a scalar
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  // Takes the place of loss and optimiser if it is set: one training step as its user wrote it, with one backward pass in
  // it and nothing that synchronises gradients.
  std::function<void()> whole_step = {};
};

// The names of a step's phases in a trace (Activity::kPhase).
inline constexpr const char* kStepPhase = "ProfilerStep#";  // the whole step, as torch.profiler calls it
inline constexpr const char* kBackwardPhase = "backward";   // this and the following are parts of the step
inline constexpr const char* kOptimizerPhase = "optimiser";
inline constexpr const char* kForwardWaitPhase = "forward waits";  // strategy ordered

// Makes all gradients undefined. Like zero_grad() without its detach_(), which fails on gradients that are views of a
// c10d::Reducer's buckets.
inline void forget_gradients(const Workload& workload) {
  for (const at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
}

inline c10::Device device_of(const Workload& workload) {
  return workload.parameters.empty() ? c10::Device(c10::kCPU) : workload.parameters[0].device();
}

// ---- A workload without a model: a replayed profile has tensors whose gradients become ready when the profile says. It
// sleeps instead of computing, so that the steps of a large model on fast devices can be run on any machine, with real
// gradients over a real or a modelled link.

struct ReplayScale {
  double bytes = 1;  // factor for every gradient's size, rounded to whole float32 elements, at least one
  double time = 1;   // factor for every ready, needed and update time
};

// Throws InputError unless both factors are positive and finite.
TensorProfile scaled(const TensorProfile& profile, const ReplayScale& scale);

// A module with the tensors of the profile, named as there ("blocks.0.weight" is in the module "blocks.0"). In forward
// each module awaits its parameters (firkin/ddp/await_parameters.h) at needed_s; waiting there delays all that follows.
// In backward one autograd node per tensor hands over its gradient at ready_s, counted from the first node, and never
// before; all gradients are small and equal. What runs beside it does not slow it down: contention for cores is not
// replayed. The optimiser, SGD, is real: update_s is not used.
//
// On a CPU the thread sleeps. On a device its stream waits, by `timer` or, by default, make_device_timer(); a module
// that awaits its parameters then gets there late by the few microseconds of a kernel.
//
// Throws InputError when the profile does not know its forward pass (with_forward()), or a tensor and a module have the
// same name.
Workload make_replay_workload(const TensorProfile& profile, c10::Device device = c10::kCPU, std::shared_ptr<DeviceTimer> timer = nullptr);

}  // namespace firkin
