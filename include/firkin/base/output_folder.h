// A folder of results: one run at a time writes into it, and earlier results are kept.
//
//   check_output_folder(out, "--out");                             // file.h; before anything is measured
//   const OutputFolderLock lock(out, "--out");                     // until the process ends
//   ...                                                            // measure, print
//   keep_older_result(out, {"results.json", "x.csv"});             // right before the first file is written
//   write_file_atomically(out / "results.json", ...);
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace firkin {

inline constexpr const char* kResultsFile = "results.json";

// Locks an output folder against other processes for as long as it lives, across machines if the file system's locks do; without locks
// it protects nothing. Processes the holder starts (ranks) may use the folder. Creates a missing folder and removes it if it ends up
// empty. A hidden file in the folder holds the lock; a killed run leaves nothing to clean up.
class OutputFolderLock {
 public:
  // Throws InputError ("WHAT FOLDER: another run (process 12 on HOST) is writing into it; ..."), and what check_output_folder throws.
  OutputFolderLock(const std::filesystem::path& folder, const std::string& what);
  ~OutputFolderLock();
  OutputFolderLock(const OutputFolderLock&) = delete;
  OutputFolderLock& operator=(const OutputFolderLock&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Moves an earlier run's files in `folder` to folder/older/N, where N is one more than the largest present (1 is the oldest), and returns
// that folder; none if there was nothing to move. So the newest result always has the plain names.
//
// It moves the entries named in `files`, which the new result is about to take. If results.json is among them, it also moves the files that
// the old one lists under "files" (last components), so files of another subcommand do not lie beside the new results, unless they are
// among `inputs`, which the new run reads. Nothing else moves: the folder may be the current one, a mount, or hold the user's own files.
// Nothing is deleted or overwritten; an interrupted move is completed by the next, under the next number. Safe without the lock, though two
// results may then mix. Throws RuntimeError if something cannot be moved; the new result should then not be written.
std::optional<std::filesystem::path> keep_older_result(const std::filesystem::path& folder, const std::vector<std::string>& files,
                                                       const std::vector<std::filesystem::path>& inputs = {});

}  // namespace firkin
