#include "workload/workload.h"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace firkin {

using Clock = std::chrono::steady_clock;

void synchronize_device(const torch::nn::Module& module) {
  const auto parameters = module.parameters();
  if (parameters.empty() || parameters[0].is_cpu()) return;
  const c10::Device device = parameters[0].device();
  c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
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
  const auto now = [&workload] {
    synchronize_device(*workload.module);
    return Clock::now();
  };
  const auto seconds = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
  const auto started = now();
  forget_gradients(workload);
  if (workload.whole_step) {
    workload.whole_step();
    return {.step_s = seconds(started, now()), .comm_s = ddp.stats().exposed_wait_s};
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
  return {.step_s = seconds(started, ended), .comm_s = seconds(backward_ended, synchronized)};
}

}  // namespace firkin
