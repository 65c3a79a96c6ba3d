// A workload that is all gradients and hardly any computation, where the cost of hooks and buckets shows.
#pragma once

#include <cstdint>

#include "workload/workload.h"

namespace firkin {

struct SyntheticTensors {
  int64_t count = 500;
  int64_t bytes = 10240;  // each, float32
};

// A module of equal tensors, each used once. Throws InputError unless count and bytes are positive and bytes a multiple of 4.
Workload make_synthetic_workload(const SyntheticTensors& tensors, c10::Device device = c10::kCPU);

}  // namespace firkin
