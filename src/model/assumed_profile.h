// The profile of a model that nobody has run: when its gradients would be ready, by floating-point operations.
//
//   const Accelerator& gpu = find_accelerator("a100");
//   const TensorProfile profile = assumed_profile(find_model("gpt2-xl").config, {.batch = 8, .sequence = 1024}, gpu.reached_flops_per_s());
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "firkin/plan/tensor_profile.h"
#include "model/transformer_config.h"

namespace firkin {

// What training reaches of a GPU's dense bf16 peak, unless the user knows better.
struct Accelerator {
  std::string_view name;
  double peak_flops_per_s;
  double utilization;  // as studies/worth assumes it, within what is published

  double reached_flops_per_s() const { return peak_flops_per_s * utilization; }
};

std::span<const Accelerator> accelerators();
const Accelerator& find_accelerator(std::string_view name);  // throws InputError, which lists the names

struct LocalBatch {
  int64_t batch = 0;     // sequences of a rank
  int64_t sequence = 0;  // tokens of each
};

// Forward takes two operations per weight and token, and attention four times width x sequence per token and block; backward takes twice
// as many. Embeddings, norms, biases and element-wise operations take no time. Gradients are float32, and ready in the reverse of
// registration order; a tied embedding's is ready when backward ends. Forward is known too (needed_s), the optimiser is not.
// Throws InputError as check_config does.
TensorProfile assumed_profile(const TransformerConfig& config, const LocalBatch& local, double flops_per_s);

}  // namespace firkin
