// The device a rank computes on: its CPU, or one of its machine's GPUs.
//
//   const c10::Device device = device_for_rank("cuda", info.local_rank);  // cuda:3 for the fourth rank of a machine
//   use_device(device);                                                   // connect() does both
//
// Needs no CUDA headers. A CPU build sees no GPU.
#pragma once

#include <c10/core/Device.h>

#include <string_view>

namespace firkin {

// Whether NCCL groups are available: LibTorch is a CUDA build, and Firkin was built with the headers of NCCL and CUDA.
bool has_nccl();

// Number of GPUs visible to this process (subject to CUDA_VISIBLE_DEVICES); 0 without a driver.
int device_count();

// name: "cpu"; "cuda" for this rank's GPU; or "auto", which is "cuda" if this process sees a GPU. GPUs are assigned by
// local rank; if there are more ranks than GPUs, several ranks get the same one. If the launcher shows each rank only
// its own GPU, that is cuda:0 for each. Throws InputError for another name, and for "cuda" without a GPU.
c10::Device device_for_rank(std::string_view name, int local_rank);

// Makes this the current device of the calling thread. Does nothing for a CPU.
void use_device(c10::Device device);

// Blocks the calling thread until all work queued on the device has finished. Does nothing for a CPU.
void synchronize(c10::Device device);

// Whether the calling thread's current stream on the device is capturing a CUDA graph. False for a CPU.
bool is_capturing(c10::Device device);

}  // namespace firkin
