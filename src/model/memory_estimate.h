// What training a transformer will hold in memory, before any of it is allocated.
//
//   check_training_memory(estimate_training_memory(config, 4, 128, 4), local_ranks, available_memory_bytes());
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "model/transformer_config.h"

namespace firkin {

// Bytes that tensors hold on one rank, under plain SGD, which has no state.
struct MemoryEstimate {
  int64_t parameters = 0;
  int64_t gradients = 0;    // once
  int64_t activations = 0;  // the most that is kept for backward, including the loss

  // In a step that sends gradients as they become ready (overlap, bucketed, planned, torch with its bucket views):
  // autograd hands over one gradient at a time; the others are in their buckets.
  int64_t step() const { return parameters + gradients + activations; }

  // The peak under any strategy. In the first step, before the gradients' order is known, and when they are sent after
  // backward (naive, flat), autograd makes a second copy beside the buckets while the activations are freed. The copy
  // that `firkin bench step` sends without a backward pass needs no more than that.
  int64_t total() const { return parameters + gradients + std::max(activations, gradients); }
};

// batch: sequences per rank; element_bytes: 4 for float32, 2 for bf16. Counts what each layer of ours keeps for
// backward, with attention fused (nothing of size sequence^2); within 15 % of what is measured
// (tests/bench/memory_test.cpp). Allocates nothing. Throws InputError as check_config does.
MemoryEstimate estimate_training_memory(const TransformerConfig& config, int64_t batch, int64_t sequence, int64_t element_bytes);

// Bytes of a rank's whole process: the tensors, two fifths more for freed memory that malloc keeps, and 200 MiB for
// LibTorch itself. Measured (bench step, flat, one rank, 4 layers of `small`, 608 MiB of tensors): 1052 MiB resident;
// 791 MiB where malloc gives blocks back.
int64_t process_bytes(const MemoryEstimate& estimate);

// "parameters 19 MiB, gradients 19 MiB, activations 40 MiB".
std::string parts_in_text(const MemoryEstimate& estimate);

// Throws InputError, one line that says what is needed, what there is, and what to do, unless `local_ranks` ranks that
// train fit into `available_bytes` together: the kernel kills a process that asks for more than there is, and does not
// say why.
void check_training_memory(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes);

}  // namespace firkin
