// The parameters and buffers of a module, compared and made equal across ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

#include <torch/nn/module.h>

namespace firkin {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Trainable parameters in registration order; a tensor registered under several names (tied weights) once, under its first.
std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module);

// Throws RuntimeError on every rank, naming the first parameter that differs from rank 0's, unless all ranks have the same list: names, shapes,
// dtypes and strides. Collective.
void check_agreement(const ProcessGroup& group, const std::vector<NamedTensor>& parameters);

// Rank 0's values to all ranks. Tensors of one dtype travel together, up to 64 MiB at a time. Collective.
void broadcast_from_rank0(const ProcessGroup& group, const std::vector<at::Tensor>& tensors);

}  // namespace firkin
