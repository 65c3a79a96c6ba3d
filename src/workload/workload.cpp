#include "workload/workload.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace firkin {

c10::Device device_of(const Workload& workload) {
  return workload.parameters.empty() ? c10::Device(c10::kCPU) : workload.parameters[0].device();
}

void forget_gradients(const Workload& workload) {
  for (const at::Tensor& parameter : workload.parameters) parameter.mutable_grad().reset();
}

DeviceTime device_now(c10::Device device) {
  if (device.is_cpu()) return {.host = std::chrono::steady_clock::now()};
  DeviceTime now{.host = std::chrono::steady_clock::now(),
                 .event = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT)};  // one that keeps time
  now.event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return now;
}

double seconds_between(const DeviceTime& from, const DeviceTime& to) {
  if (to.event == nullptr) return std::chrono::duration<double>(to.host - from.host).count();
  constexpr double kMillisecond = 1e-3;
  to.event->synchronize();
  from.event->synchronize();  // it may be of another stream
  return from.event->elapsedTime(*to.event) * kMillisecond;
}

}  // namespace firkin
