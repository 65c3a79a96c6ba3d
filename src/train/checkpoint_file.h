// One checkpoint as one file: LibTorch's own archive of named tensors, with what it is and a checksum in the archive's comment.
//
//   write_checkpoint("step-00000100.ckpt", {{.step = 100, .about = {...}}, {{"parameter/lm_head.weight", tensor}}});
//   Checkpoint checkpoint = read_checkpoint("step-00000100.ckpt");
//
// The file is a zip archive, as torch::save() and Python's torch.save() write: torch.load(file) returns the dictionary of tensors. Its
// comment is one line of JSON, and then the CRC-32 of all that stands before it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace firkin {

struct CheckpointHead {
  int64_t step = 0;                      // steps that were done
  std::optional<double> held_loss = {};  // of the held part, after that step
  nlohmann::json about = {};             // what was trained, on what; an object, of less than 60 KB as text
};

struct Checkpoint {
  CheckpointHead head;
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

// The tensors must be on the CPU. The file is whole, and on the disk, or not there at all. Throws RuntimeError when that fails.
void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint);

// Throws InputError that names the file and says why it cannot be read: it is not there, no checkpoint, cut short, damaged, or of a newer
// format than this version of Firkin reads.
Checkpoint read_checkpoint(const std::filesystem::path& file);

// Only what stands in the comment, without the checksum's being looked at. Throws as read_checkpoint().
CheckpointHead read_checkpoint_head(const std::filesystem::path& file);

}  // namespace firkin
