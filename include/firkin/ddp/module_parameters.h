// The parameters of a module that data-parallel training synchronises.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include <torch/nn/module.h>

namespace firkin {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Trainable parameters in registration order; a tensor registered under several names (tied weights) once, under its first.
std::vector<NamedTensor> trainable_parameters(const torch::nn::Module& module);

}  // namespace firkin
