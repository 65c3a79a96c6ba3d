// Reads and atomically replaces whole files, and guards a folder of results: one run at a time writes into it, and
// files of an earlier run keep a numbered name.
//
//   OutputFolder out("run", "--out");               // before anything is measured; until the process ends
//   ...                                             // measure, print
//   out.set_aside({"results.json", "tensors.csv"});  // an earlier results.json is now results.1.json
//   write_file_atomically("run/results.json", ...);
#pragma once

#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

// The whole content. Throws InputError ("FILE: cannot be read: REASON").
std::string read_file(const std::filesystem::path& path);

// The whole content of a text file with short lines; reading stops at the first line of more than `longest_line` bytes.
// Throws InputError: "FILE: cannot be read: REASON; expected EXPECTED", or "FILE:LINE: the line is longer than ...;
// expected EXPECTED".
std::string read_text_file(const std::filesystem::path& path, size_t longest_line, const std::string& expected);

// Writes to a temporary file in the same folder, syncs it, and renames it over `path`, creating missing parent folders.
// Throws RuntimeError on failure; `path` is then unchanged and the temporary file is gone.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// Opens /dev/null as standard input, output or error where the program was started without it (a daemon). Otherwise a
// file opened later would take that descriptor and receive what is printed. Call it first in main().
void occupy_standard_descriptors();

// ---- Folders of results.

inline constexpr const char* kResultsFile = "results.json";

// Throws InputError ("WHAT FOLDER: ...") unless a file can be written into the folder or, where that does not exist yet,
// into the nearest folder around it that does. Leaves nothing behind.
void check_output_folder(const std::filesystem::path& folder, const std::string& what);

// Locks a folder against other processes for this object's lifetime, also across machines where the file system
// supports it. The lock is a hidden file; a killed run leaves nothing to clean up.
class OutputFolder {
 public:
  // Makes a missing folder. Throws InputError as check_output_folder(), and if another process holds the folder.
  OutputFolder(const std::filesystem::path& folder, const std::string& what);

  // Removes the folders it made if they are still empty.
  ~OutputFolder();

  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  // Renames those of `files` that exist from NAME.EXTENSION to NAME.N.EXTENSION, with the first N (1 is the oldest run)
  // that is free for all of them: nothing is overwritten. Files named in earlier calls belong to this run and stay.
  // Returns the new names. Throws RuntimeError if a file cannot be renamed; do not write the new result then.
  std::vector<std::string> set_aside(const std::vector<std::string>& files);

 private:
  void remove_what_it_made();

  std::filesystem::path folder_;
  std::vector<std::filesystem::path> made_;  // innermost first
  int lock_ = -1;
  std::set<std::string> own_;
  int number_ = 1;  // N of set_aside()
};

}  // namespace firkin
