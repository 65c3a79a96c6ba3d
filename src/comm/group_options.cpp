#include "group_options.h"

#include <fmt/format.h>

#include "firkin/base/error.h"
#include "firkin/comm/device.h"
#include "nccl_backend.h"

namespace firkin {
namespace {

constexpr const char* kGlooAndNccl = "cpu:gloo,cuda:nccl";

}  // namespace

const char* backend_name(DeviceBackend backend) {
  return backend == DeviceBackend::kNccl ? kGlooAndNccl : "gloo";
}

c10::Device choose_device(const GroupOptions& options, int local_rank) {
  if (!options.device) return device_for_rank("auto", local_rank);
  if (!options.device->is_cuda()) return *options.device;
  const c10::Device of_rank = device_for_rank("cuda", local_rank);
  if (!options.device->has_index()) return of_rank;
  if (options.device->index() >= device_count()) {
    throw InputError(fmt::format("device {}: this process sees {} GPUs; expected a lower number", options.device->str(), device_count()));
  }
  return *options.device;
}

DeviceBackend choose_backend(const GroupOptions& options, c10::Device device) {
  const std::string& name = options.backend;
  if (name == "gloo") return DeviceBackend::kGloo;
  if (name != "auto" && name != "nccl" && name != kGlooAndNccl) {
    throw InputError(fmt::format("backend {}: expected auto, gloo, nccl or {}", name, kGlooAndNccl));
  }
  if (name == "auto") return is_nccl_built() && device.is_cuda() && !options.link ? DeviceBackend::kBest : DeviceBackend::kGloo;
  if (options.link) throw InputError(fmt::format("backend {} over a modelled link; expected gloo", name));
  if (!is_nccl_built()) throw InputError(fmt::format("backend {}: Firkin was built without NCCL; expected gloo", name));
  if (!device.is_cuda()) {
    throw InputError(fmt::format("backend {}: {}; expected gloo", name, device_count() == 0 ? "no GPU here" : "the device is the CPU"));
  }
  return DeviceBackend::kNccl;
}

}  // namespace firkin
