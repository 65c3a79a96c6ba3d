// What training a transformer will hold in memory, before any of it is allocated.
#pragma once

#include <cstdint>

#include "model/transformer_config.h"

namespace firkin {

// Bytes on one rank.
struct MemoryEstimate {
  int64_t parameters = 0;
  int64_t gradients = 0;    // once, in their buckets
  int64_t activations = 0;  // the most that backward waits for, with the loss
  int64_t total() const { return parameters + gradients + activations; }
};

// batch: sequences per rank; element_bytes: 4 for float32, 2 for bf16. An optimiser without state (plain SGD). Counts what each layer of
// ours keeps for backward, with attention fused (nothing of size sequence^2); within 15 % of what is measured
// (tests/bench/memory_test.cpp). Allocates nothing. Throws InputError as check_config does.
MemoryEstimate estimate_training_memory(const TransformerConfig& config, int64_t batch, int64_t sequence, int64_t element_bytes);

}  // namespace firkin
