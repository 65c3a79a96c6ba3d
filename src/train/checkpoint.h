// Checkpoints of a training: the file, the folder that they lie in, the thread that writes them, and what of a training goes into one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "train/formats.h"
#include "train/trainer.h"

namespace firkin {

// One checkpoint as one file: LibTorch's own archive of named tensors, with what it is and a checksum in the archive's comment.
//
//   write_checkpoint("step-00000100.ckpt", {{.step = 100, .about = {...}}, {{"parameter/lm_head.weight", tensor}}});
//   Checkpoint checkpoint = read_checkpoint("step-00000100.ckpt");
//
// The file is a zip archive, as torch::save() and Python's torch.save() write: torch.load(file) returns the dictionary of tensors. Its
// comment is the head (formats.h), and then the CRC-32 of all that stands before it.
struct Checkpoint {
  CheckpointHead head;
  std::vector<std::pair<std::string, at::Tensor>> tensors = {};
};

// The tensors must be on the CPU. The file is whole, and on the disk, or not there at all. Throws RuntimeError when that fails.
void write_checkpoint(const std::filesystem::path& file, const Checkpoint& checkpoint);

// Throws InputError that names the file and says why it cannot be read: it is not there, no checkpoint, cut short, damaged, or of a newer
// format than this version of Firkin reads.
Checkpoint read_checkpoint(const std::filesystem::path& file);

// The checkpoints of a run: which there are, which is the newest that is whole, and which are kept.
//
//   write_checkpoint(checkpoint_path(folder, 100), checkpoint);
//   remove_old_checkpoints(folder, 3);

inline constexpr const char* kCheckpointFolder = "checkpoints";  // in the run's folder

// step-00000100.ckpt
std::filesystem::path checkpoint_path(const std::filesystem::path& folder, int64_t step);

struct StoredCheckpoint {
  int64_t step = 0;
  std::filesystem::path file;
};

// By name alone, oldest first. Empty when there is no such folder.
std::vector<StoredCheckpoint> list_checkpoints(const std::filesystem::path& folder);

struct NewestCheckpoint {
  std::filesystem::path file;
  Checkpoint checkpoint;
};

// The newest that can be read, all of it. `problems` gets one line for each newer one that cannot. None when there is none.
std::optional<NewestCheckpoint> read_newest_checkpoint(const std::filesystem::path& folder, std::vector<std::string>& problems);

// Removes all but the newest `keep` and the one of the least held loss; of two alike, the older one stays. A file that cannot be read is
// left alone, and counts as one of those.
void remove_old_checkpoints(const std::filesystem::path& folder, int64_t keep);

// Throws InputError, which names the file, unless the description in a checkpoint's head is that of this training, in what must be the same
// to go on: all but the name of the data and kOptimisationKey.
void check_same_training(const nlohmann::json& stored, const nlohmann::json& ours, const std::filesystem::path& file);

// How both say that parameters are updated, where they differ, which may be on the way: "--steps 300 (before: 200)"; empty: nowhere.
std::string changed_optimisation(const nlohmann::json& stored, const nlohmann::json& ours);
inline constexpr const char* kOptimisationKey = "optimisation";

// What writers that were killed have left. Call it only where no other process writes.
void remove_unfinished_checkpoints(const std::filesystem::path& folder);

// Writes checkpoints while training goes on.
//
//   CheckpointWriter writer(out / kCheckpointFolder, /*keep=*/3);
//   writer.write(copy_of_training(trainer));   // returns at once, unless the one before is still being written
//   if (auto problem = writer.problem()) ...   // of one that is done
//
// One thread may use it.
class CheckpointWriter {
 public:
  // keep: the newest that stay, beside the best (remove_old_checkpoints()).
  CheckpointWriter(std::filesystem::path folder, int64_t keep) : folder_(std::move(folder)), keep_(keep) {}
  // Waits.
  ~CheckpointWriter() { wait(); }
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Waits for the one before, if that is not done. The tensors must not change from now on.
  void write(Checkpoint checkpoint);

  void wait();

  // Why a checkpoint could not be written, in one line, once for each; none so far: nothing. Does not wait.
  std::optional<std::string> problem();

  // Whether the last one that is done was not written.
  bool last_failed() const { return last_failed_; }

 private:
  void take_result();

  std::filesystem::path folder_;
  int64_t keep_;
  std::future<std::string> under_way_;  // its result: what went wrong, or nothing
  std::string problem_;
  bool last_failed_ = false;
};

// All that a training needs to go on. Random numbers need no place in it: those of a step come from seed, step and rank (trainer.h), and so
// do its samples.

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
