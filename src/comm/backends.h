// The backends of c10d that gradients travel by. Their headers stay inside one source file each.
#pragma once

#include <chrono>
#include <string>

#include "firkin/comm/process_group.h"

namespace firkin {

// Gloo, the backend for CPU tensors. Its headers stay inside gloo_backend.cpp: the wheel does not ship them.

// address: of the meeting point; a loopback address keeps the ranks' connections on loopback as well. Otherwise Gloo uses the interface
// that GLOO_SOCKET_IFNAME names, or the one of this machine's host name.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    const std::string& address, std::chrono::milliseconds timeout);

// NCCL, the backend for tensors on GPUs. Its headers and CUDA's stay inside nccl_backend.cpp, which is compiled where LibTorch is a CUDA
// build; elsewhere no_nccl_backend.cpp stands in for it.

bool is_nccl_built();

// "2.29.7"; empty without NCCL.
std::string nccl_version();

// What tells this GPU from every other one of this and other machines: its UUID. Throws RuntimeError without NCCL.
std::string gpu_identity(c10::Device device);

// Communicators are made by the first collective. Throws InputError without NCCL, c10::Error without a GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    std::chrono::milliseconds timeout);

// Whether the current stream of this device records a graph; false without CUDA.
bool is_cuda_capturing(c10::Device device);

}  // namespace firkin
