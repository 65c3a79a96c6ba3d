// What a benchmark steps: any module with a loss and an optimiser.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"

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

// Seconds on this rank: on a device as its events say, which are waited for when the step is over (device_clock.h).
struct StepTimes {
  double step_s = 0;  // zero_grad, forward, backward, synchronisation of gradients, optimiser
  double comm_s = 0;  // from the end of backward to the last gradient: the figure of the CS336 hand-out
};

// The phase (trace/) that is a whole step.
inline constexpr const char* kStepPhase = "step";
inline constexpr const char* kBackwardPhase = "backward";  // and parts of it
inline constexpr const char* kOptimizerPhase = "optimiser";
inline constexpr const char* kForwardWaitPhase = "forward waits";  // strategy ordered

// Gradients of all parameters become undefined: what zero_grad() does, less its detach_(), which gradients that are views of a
// c10d::Reducer's buckets refuse.
void forget_gradients(const Workload& workload);

// As run_step() needs them, to tell backward from what comes after it: unless the workload is a whole step, gradients are synchronised by
// finish_gradient_synchronization().
DataParallelOptions with_timed_synchronization(const Workload& workload, DataParallelOptions options);

// Steps beyond the first that the strategy takes until it works as it will.
inline int steps_to_learn(const Strategy& strategy) {
  return strategy.wait == Wait::kAtFirstUse ? 2 : 0;
}

// One training step. `step` picks the batch. A profiler sees it as phases: step, and in it forward, backward, synchronisation, optimiser.
// optimizer: over `ddp` and the workload's; null for a whole step, of which a profiler sees no phases but itself.
StepTimes run_step(Workload& workload, DataParallel& ddp, OverlappedOptimizer* optimizer, int64_t step);

// Of its parameters.
c10::Device device_of(const Workload& workload);

}  // namespace firkin
