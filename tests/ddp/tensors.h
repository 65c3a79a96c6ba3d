// Tensors of tests: random ones from a seed (LibTorch's default generator is shared by all ranks of a test), and lists that are kept and
// compared.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include "../torch.h"

namespace firkin {

using Tensors = std::vector<at::Tensor>;

inline at::Tensor seeded_randn(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

inline void seed_parameters(torch::nn::Module& module, uint64_t seed) {
  for (at::Tensor& parameter : module.parameters()) {
    parameter.detach().copy_(0.3 * seeded_randn(parameter.sizes(), seed++));
  }
}

// On the CPU, where all ranks may read them. What is undefined stays so.
inline Tensors copies(const Tensors& tensors) {
  Tensors result;
  for (const at::Tensor& tensor : tensors) {
    result.push_back(tensor.defined() ? tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true) : tensor);
  }
  return result;
}

inline bool same_bits(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

// The largest difference, relative to the largest entry, of any tensor.
inline double relative_difference(const Tensors& a, const Tensors& b) {
  double worst = a.size() == b.size() ? 0 : std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double scale = std::max(b[i].abs().max().item<double>(), std::numeric_limits<double>::min());
    worst = std::max(worst, (a[i] - b[i]).abs().max().item<double>() / scale);
  }
  return worst;
}

}  // namespace firkin
