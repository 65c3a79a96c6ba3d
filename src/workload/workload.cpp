#include "workload/workload.h"

namespace firkin {

c10::Device device_of(const Workload& workload) {
  return workload.parameters.empty() ? c10::Device(c10::kCPU) : workload.parameters[0].device();
}

void forget_gradients(const Workload& workload) {
  for (const at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
}

}  // namespace firkin
