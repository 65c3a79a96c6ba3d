// NCCL, the backend for tensors on GPUs. Its headers and CUDA's stay inside nccl_backend.cpp, which is compiled where LibTorch is a CUDA
// build; elsewhere no_nccl_backend.cpp stands in for it.
#pragma once

#include <chrono>
#include <string>

#include "firkin/comm/process_group.h"

namespace firkin {

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
