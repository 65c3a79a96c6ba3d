// An estimated profile of a model that was not run: when gradients would be ready, by floating-point operations.
//
//   const Accelerator& gpu = find_accelerator("a100");
//   const TransformerConfig config = find_model("gpt2-xl").config;
//   const TensorProfile profile = assumed_profile(config, {.batch = 8, .sequence = 1024}, gpu.reached_flops_per_s());
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "firkin/plan/tensor_profile.h"
#include "model/transformer_config.h"

namespace firkin {

// A GPU's dense bf16 peak, and the share that training is assumed to reach, unless the user gives another.
struct Accelerator {
  std::string_view name;
  double peak_flops_per_s;
  double utilization;  // the assumption of studies/worth, which is within published values

  double reached_flops_per_s() const { return peak_flops_per_s * utilization; }
};

std::span<const Accelerator> accelerators();
const Accelerator& find_accelerator(std::string_view name);  // throws InputError, which lists the names

struct LocalBatch {
  int64_t batch = 0;     // sequences per rank
  int64_t sequence = 0;  // tokens per sequence
};

// Counts two operations per weight and token in forward, and for attention four times width x sequence per token and
// block; backward takes twice as many. Embeddings, norms, biases and element-wise operations take no time. Gradients
// are float32, and ready in the reverse of registration order; a tied embedding's is ready when backward ends. The
// profile has the times of forward (needed_s), but not of the optimiser. Throws InputError as check_config does.
TensorProfile assumed_profile(const TransformerConfig& config, const LocalBatch& local, double flops_per_s);

}  // namespace firkin
