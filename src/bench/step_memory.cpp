#include "bench/step_memory.h"

#include "bench/step_runner.h"
#include "bench/tensor_memory.h"
#include "comm/across_ranks.h"

namespace firkin {
namespace {

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.nbytes());
  return bytes;
}

// What lives as long as the workload.
int64_t lasting_bytes(const Workload& workload) {
  return bytes_of(workload.parameters) + bytes_of(workload.module->buffers());
}

}  // namespace

StepMemory measure_step_memory(const ProcessGroup& group, Workload& workload, const DataParallelOptions& options) {
  forget_gradients(workload);
  TensorMemory memory(device_of(workload));
  StepRunner runner(group, workload, options);
  int64_t step = 0;
  while (step < 1 + steps_to_learn(options.strategy)) runner.step(step++);
  forget_gradients(workload);
  memory.reset_peak();
  runner.step(step);
  runner.drain();
  const auto lasting = static_cast<double>(lasting_bytes(workload));
  const std::vector<double> most =
      max_over_ranks(group, {lasting + static_cast<double>(memory.peak_bytes()), lasting + static_cast<double>(memory.now_bytes())});
  forget_gradients(workload);
  return {.peak_bytes = static_cast<int64_t>(most[0]), .between_steps_bytes = static_cast<int64_t>(most[1])};
}

StepMemory measure_local_step_memory(Workload& workload) {
  forget_gradients(workload);
  TensorMemory memory(device_of(workload));
  workload.loss(0).backward();
  const int64_t lasting = lasting_bytes(workload);
  const StepMemory result{.peak_bytes = lasting + memory.peak_bytes(), .between_steps_bytes = lasting + memory.now_bytes()};
  forget_gradients(workload);
  return result;
}

}  // namespace firkin
