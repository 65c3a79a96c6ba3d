#include "firkin/comm/device.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "backends.h"
#include "firkin/base/error.h"

#include <torch/headeronly/version.h>

namespace firkin {

bool has_nccl() {
  return !nccl_version().empty();
}

int device_count() {
  return static_cast<int>(at::detail::getCUDAHooks().deviceCount());
}

c10::Device device_for_rank(std::string_view name, int local_rank) {
  if (name != "cpu" && name != "cuda" && name != "auto") throw InputError(fmt::format("device {}: expected cpu, cuda or auto", name));
  const int devices = name == "cpu" ? 0 : device_count();
  if (devices > 0) return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank % devices)};
  if (name != "cuda") return c10::kCPU;
  const bool is_cuda_build = at::detail::getCUDAHooks().hasCUDART();
  const std::string why = is_cuda_build ? "this process sees no GPU" : fmt::format("LibTorch {} is a build for the CPU", TORCH_VERSION);
  throw InputError(fmt::format("device cuda: {}; expected cpu", why));
}

void use_device(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
}

void synchronize(c10::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

DeviceBackend choose_backend(const GroupOptions& options, c10::Device device) {
  const std::string& name = options.backend;
  if (name == "gloo") return DeviceBackend::kGloo;
  if (name != "auto" && name != "nccl" && name != kGlooAndNccl) {
    throw InputError(fmt::format("backend {}: expected auto, gloo, nccl or {}", name, kGlooAndNccl));
  }
  if (name == "auto") return has_nccl() && device.is_cuda() && !options.link ? DeviceBackend::kBest : DeviceBackend::kGloo;
  if (options.link) throw InputError(fmt::format("backend {} over a modelled link, which replaces it; expected auto or gloo", name));
  if (!has_nccl()) throw InputError(fmt::format("backend {}: Firkin was built without NCCL; expected gloo", name));
  if (!device.is_cuda()) {
    throw InputError(fmt::format("backend {}: {}; expected gloo", name, device_count() == 0 ? "no GPU here" : "the device is the CPU"));
  }
  return DeviceBackend::kNccl;
}

void check_link(const std::optional<ModelledLink>& link, int size, c10::Device device) {
  if (!link) return;
  if (link->world < size) {
    throw InputError(fmt::format("a modelled link for {} ranks: expected at least the group's {}", link->world, size));
  }
  if (link->sms != 0 && device.is_cpu()) {
    throw InputError(fmt::format("a modelled link with sms={} on the CPU; expected a GPU, whose multiprocessors it holds", link->sms));
  }
  if (size == 1 || device.is_cpu()) return;
  throw InputError(
      fmt::format("a modelled link between {} ranks on {}; expected one rank there, which stands for all (--ranks 1 --world N), "
                  "or ranks on CPUs",
                  size, device.str()));
}

}  // namespace firkin
