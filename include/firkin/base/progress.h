// Progress of long work, on standard error: standard output is for results.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>

namespace firkin {

// The columns of the terminal on standard output, at least 40 and, since longer lines are hard to read, at most 120; 80
// if standard output is no terminal.
size_t text_columns();

// One line rewritten in place on a terminal; elsewhere (a log file) a line every ten seconds. The last unit or finish()
// ends the line. A disabled Progress does nothing, so ranks other than 0 run the same code. Not thread-safe.
//
//   Progress progress("measuring", 12, rank == 0);
//   for (...) progress.advance("cap 4 MiB");
//   fmt::print(table);
class Progress {
 public:
  // total: units of work; 0 if their number is not known. out: must outlive it; standard error except in tests.
  Progress(std::string what, int total, bool enabled, std::FILE* out = stderr);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Disables every Progress of this process from now on.
  static void silence();

  // One of `total` units is done; `detail` says which.
  void advance(const std::string& detail);

  // Ends an open line so that other output can follow; the next advance() begins a new one.
  void finish();

 private:
  void print(const std::string& detail);

  std::string what_;
  int total_;
  bool enabled_;
  std::FILE* out_;
  bool terminal_;
  bool line_is_open_ = false;
  int done_ = 0;
  std::chrono::steady_clock::time_point started_;
  std::chrono::steady_clock::time_point printed_;
};

}  // namespace firkin
