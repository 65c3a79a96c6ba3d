// What needs the headers of NCCL and CUDA: backends, the version of NCCL, a GPU's identity, whether a graph is
// captured.
#include "backends.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>

#include <cstdlib>

#include "firkin/comm/device.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace firkin {

std::string nccl_version() {
  return fmt::format("{}.{}.{}", NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH);
}

std::string gpu_identity(c10::Device device) {
  std::string identity;
  for (const char byte : at::cuda::getDeviceProperties(device.index())->uuid.bytes) {
    identity += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  // NCCL takes ranks with different values of this for ranks on different machines.
  const char* machine = std::getenv("NCCL_HOSTID");
  return machine == nullptr ? identity : identity + "@" + machine;
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

bool is_capturing(c10::Device device) {
  if (!device.is_cuda()) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(c10::cuda::getCurrentCUDAStream(device.index()), &status));
  return status != cudaStreamCaptureStatusNone;
}

}  // namespace firkin
