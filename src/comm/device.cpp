#include "firkin/comm/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include <string>

#include "firkin/base/error.h"
#include "nccl_backend.h"

#include <torch/headeronly/version.h>

namespace firkin {
namespace {

std::string why_no_gpu() {
  if (at::detail::getCUDAHooks().hasCUDART()) return "this process sees no GPU";
  return fmt::format("LibTorch {} is a build for the CPU", TORCH_VERSION);
}

}  // namespace

bool has_nccl() {
  return is_nccl_built();
}

int device_count() {
  return static_cast<int>(at::detail::getCUDAHooks().deviceCount());
}

c10::Device device_for_rank(std::string_view name, int local_rank) {
  if (name != "cpu" && name != "cuda" && name != "auto") throw InputError(fmt::format("device {}: expected cpu, cuda or auto", name));
  const int devices = name == "cpu" ? 0 : device_count();
  if (devices > 0) return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % devices)};
  if (name == "cuda") throw InputError(fmt::format("device cuda: {}; expected cpu", why_no_gpu()));
  return c10::kCPU;
}

void use_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

bool is_capturing(c10::Device device) {
  return device.is_cuda() && is_cuda_capturing(device);
}

}  // namespace firkin
