// Stands in for nccl_backend.cpp and cuda_timer.cpp where LibTorch is a build for the CPU.
#include "backends.h"
#include "device_time.h"
#include "firkin/base/error.h"
#include "firkin/comm/device.h"

namespace firkin {

std::string nccl_version() {
  return "";
}

std::string gpu_identity(c10::Device /*device*/) {
  throw RuntimeError("no GPU: Firkin was built without NCCL");
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& /*store*/, int /*rank*/, int /*size*/,
                                                    std::chrono::milliseconds /*timeout*/) {
  throw InputError("backend nccl: Firkin was built without it; expected gloo");
}

std::unique_ptr<DeviceTimer> make_device_timer(c10::Device device, const std::string& /*name*/, int /*sms*/) {
  throw InputError("a modelled link or a replay on " + device.str() + ": Firkin was built without CUDA; expected the CPU");
}

bool is_capturing(c10::Device /*device*/) {
  return false;
}

}  // namespace firkin
