// A folder of results: one run at a time writes into it, and what an earlier run left there is kept.
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

// While it lives, other processes that want the same folder are refused, on other machines too where the file system has locks that reach
// that far; where it has none, nobody is refused. A process that a holder started (a rank) is not refused. The folder is made when it is
// missing, and goes again if it is still empty at the end; a hidden file in it holds the lock. Nothing is left to clear away after a run
// that was killed.
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

// Moves what an earlier run left in `folder` to folder/older/N, N one more than the largest there is (so 1 is the oldest), and returns
// that folder; none when there was nothing to move. The newest result is thus always at the plain names.
//
// Moved are the entries of `folder` with the names in `files`, which the new result is about to take; where results.json is among them,
// also what the one that is there lists under "files" (the last components), so that files of another subcommand do not lie beside the new
// results, unless they are among `inputs`, which the new run was given to read. Nothing else: the folder may be the current one, a mount,
// or hold files of the user's own, so renaming all of it is wrong. Nothing is ever deleted or overwritten: N is a new folder; an
// interrupted move is completed by the next one, under the next number. Safe without the lock, though two results may then be mixed. Throws
// RuntimeError when something cannot be moved; the new result should then not be written.
std::optional<std::filesystem::path> keep_older_result(const std::filesystem::path& folder, const std::vector<std::string>& files,
                                                       const std::vector<std::filesystem::path>& inputs = {});

}  // namespace firkin
