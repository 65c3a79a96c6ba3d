#include "workload/workload.h"

#include <ATen/record_function.h>

#include "workload/device_clock.h"

namespace firkin {

c10::Device device_of(const Workload& workload) {
  return workload.parameters.empty() ? c10::Device(c10::kCPU) : workload.parameters[0].device();
}

void forget_gradients(const Workload& workload) {
  for (const at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
}

DataParallelOptions with_timed_synchronization(const Workload& workload, DataParallelOptions options) {
  options.finish_with_backward = static_cast<bool>(workload.whole_step);
  return options;
}

StepTimes run_step(Workload& workload, DataParallel& ddp, OverlappedOptimizer* optimizer, int64_t step) {
  RECORD_USER_SCOPE(kStepPhase);
  const auto now = [device = device_of(workload)] { return device_now(device); };
  const auto started = now();
  forget_gradients(workload);
  if (workload.whole_step) {
    workload.whole_step();
    return {.step_s = seconds_between(started, now()), .comm_s = ddp.stats().exposed_wait_s};
  }
  at::Tensor loss;
  {
    RECORD_USER_SCOPE("forward");
    loss = workload.loss(step);
  }
  {
    RECORD_USER_SCOPE(kBackwardPhase);
    loss.backward();
  }
  const auto backward_ended = now();
  {
    RECORD_USER_SCOPE("synchronisation");
    ddp.finish_gradient_synchronization();
  }
  const auto synchronized = now();
  {
    RECORD_USER_SCOPE(kOptimizerPhase);
    optimizer->step();
  }
  loss.reset();  // and the graph with it: training loops hold both until the next step
  const auto ended = now();
  return {.step_s = seconds_between(started, ended), .comm_s = seconds_between(backward_ended, synchronized)};
}

}  // namespace firkin
