// What GroupOptions ask for, as far as one rank can tell: which device it is on, and what shall carry that device's tensors.
#pragma once

#include "firkin/comm/process_group.h"

namespace firkin {

// Tensors on the CPU go over Gloo in any case.
enum class DeviceBackend {
  kBest,  // NCCL where every rank has it and a GPU of its own; otherwise Gloo
  kGloo,
  kNccl,
};

// The device of this rank: options.device, or the GPU of its local rank where there is one. Throws InputError for a GPU that is not here.
c10::Device choose_device(const GroupOptions& options, int local_rank);

// What options.backend says, for a rank on this device: never kBest where NCCL cannot be had. Throws InputError for an unknown backend, for
// nccl without NCCL, without a GPU or beside a modelled link.
DeviceBackend choose_backend(const GroupOptions& options, c10::Device device);

// "gloo" or "cpu:gloo,cuda:nccl".
const char* backend_name(DeviceBackend backend);

// What LibTorch's own log writes to standard error, in programs whose ranks Firkin runs.

// As TORCH_CPP_LOG_LEVEL says, where it is set; by itself LibTorch reads that only under Python. Otherwise errors alone: when a rank has
// gone, c10d warns on every other one, with backtraces between which the line that names the rank is hard to find.
void set_torch_log_level();

}  // namespace firkin
