// The checkpoints of a run: which there are, which is the newest that is whole, and which are kept.
//
//   write_checkpoint(checkpoint_path(folder, 100), checkpoint);
//   remove_old_checkpoints(folder, 3);
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "train/checkpoint_file.h"

namespace firkin {

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

// What writers that were killed have left. Call it only where no other process writes.
void remove_unfinished_checkpoints(const std::filesystem::path& folder);

}  // namespace firkin
