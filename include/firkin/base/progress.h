// Progress of long work, on standard error, so that standard output stays the result.
#pragma once

#include <chrono>
#include <string>

namespace firkin {

// One line that is rewritten in place on a terminal, and a line every ten seconds elsewhere (a log file).
// A disabled Progress does nothing, so ranks other than 0 run the same code. Not thread-safe.
//
//   Progress progress("measuring", 12, rank == 0);
//   for (...) progress.advance("cap 4 MiB");
class Progress {
 public:
  Progress(std::string what, int total, bool enabled);
  ~Progress();  // ends the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // One of `total` units is done; `detail` says which.
  void advance(const std::string& detail);

 private:
  void print(const std::string& detail);

  std::string what_;
  int total_;
  bool enabled_;
  bool terminal_;
  int done_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point printed_;
};

}  // namespace firkin
