// The device that a rank computes on: its CPU, or one of the GPUs of its machine.
//
//   const c10::Device device = device_for_rank("cuda", info.local_rank);  // cuda:3 for the fourth rank of a machine
//   use_device(device);                                                   // connect() does both
//
// Nothing here needs the headers of CUDA. In a build for the CPU alone there is no GPU.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace firkin {

// Whether groups over NCCL can be made: LibTorch is a CUDA build, and NCCL's and CUDA's headers were found when Firkin was built.
bool has_nccl();

// GPUs that this process sees (CUDA_VISIBLE_DEVICES counts); 0 without a driver.
int device_count();

// name: "cpu"; "cuda", the GPU of this rank; or "auto", which is "cuda" where this process sees a GPU. GPUs are dealt out by local rank,
// and dealt again where there are more ranks than GPUs. A launcher may also show every rank a GPU of its own, which is cuda:0 for each.
// Throws InputError for another name, and for "cuda" without a GPU.
c10::Device device_for_rank(std::string_view name, int local_rank);

// What this thread allocates and queues on "the current device" is on this one from now on. For a CPU: does nothing.
void use_device(c10::Device device);

// Blocks this thread until all that was queued on the device has run. For a CPU: does nothing.
void synchronize(c10::Device device);

// Whether this thread's current stream on the device records a CUDA graph instead of running what is queued. For a CPU: false.
bool is_capturing(c10::Device device);

}  // namespace firkin
