// Writes checkpoints while training goes on.
//
//   CheckpointWriter writer(out / kCheckpointFolder, /*keep=*/3);
//   writer.write(copy_of_training(trainer));   // returns at once, unless the one before is still being written
//   if (auto problem = writer.problem()) ...   // of one that is done
#pragma once

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>

#include "train/checkpoint_file.h"

namespace firkin {

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

}  // namespace firkin
