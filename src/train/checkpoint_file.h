// One checkpoint as one file: LibTorch's own archive of named tensors, with what it is and a checksum in the archive's comment.
//
//   write_checkpoint("step-00000100.ckpt", {{.step = 100, .about = {...}}, {{"parameter/lm_head.weight", tensor}}});
//   Checkpoint checkpoint = read_checkpoint("step-00000100.ckpt");
//
// The file is a zip archive, as torch::save() and Python's torch.save() write: torch.load(file) returns the dictionary of tensors. Its
// comment is the head (checkpoint_head.h), and then the CRC-32 of all that stands before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "train/checkpoint_head.h"

namespace firkin {

struct Checkpoint {
  CheckpointHead head;
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

// The tensors must be on the CPU. The file is whole, and on the disk, or not there at all. Throws RuntimeError when that fails.
void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint);

// Throws InputError that names the file and says why it cannot be read: it is not there, no checkpoint, cut short, damaged, or of a newer
// format than this version of Firkin reads.
Checkpoint read_checkpoint(const std::filesystem::path& file);

}  // namespace firkin
