// All that a training needs to go on, as the tensors of a checkpoint, and back.
//
// Random numbers need no place in it: those of a step come from seed, step and rank (trainer.h), and so do its samples.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoint_file.h"
#include "train/trainer.h"

namespace firkin {

// Copies on the CPU of parameters, buffers, master weights and AdamW's state, and the order in which gradients become ready: with it the
// sums of gradients are made as they would have been, to the last bit.
std::vector<std::pair<std::string, at::Tensor>> copy_of_training(Trainer& trainer);

// Into the module, by the tensors' names. Throws InputError unless the checkpoint has every parameter and buffer, in its shape.
void load_parameters(const Checkpoint& checkpoint, torch::nn::Module& module);

// Where rank 0's checkpoint goes on, on every rank. Collective; `checkpoint` is rank 0's, null on the others.
struct Continuation {
  int64_t step = 0;
  std::vector<int64_t> ready_order;  // DataParallelOptions'
};
Continuation share_continuation(const ProcessGroup& group, const torch::nn::Module& module, const Checkpoint* checkpoint);

// Rank 0's optimiser state and master weights, on every rank, and the step. Parameters are shared when the trainer is made. Collective.
void continue_training(Trainer& trainer, const Continuation& continuation, const Checkpoint* checkpoint);

}  // namespace firkin
