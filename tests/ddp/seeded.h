// Random numbers that do not depend on what other threads draw: LibTorch's default generator is shared by all ranks of a test.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <torch/nn/module.h>

namespace firkin {

inline at::Tensor seeded_randn(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

inline void seed_parameters(torch::nn::Module& module, uint64_t seed) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.detach().copy_(0.3 * seeded_randn(parameter.sizes(), seed++));
  }
}

}  // namespace firkin
