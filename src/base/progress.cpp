#include "firkin/base/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

namespace firkin {

using std::chrono::steady_clock;

Progress::Progress(std::string what, int total, bool enabled)
    : what_(std::move(what)),
      total_(total),
      enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1),
      started_(steady_clock::now()),
      printed_(started_) {
  if (enabled_) print("");
}

Progress::~Progress() {
  if (enabled_ && terminal_) std::fputc('\n', stderr);
}

void Progress::advance(const std::string& detail) {
  ++done_;
  if (!enabled_) return;
  constexpr auto kLogInterval = std::chrono::seconds(10);
  const bool last = done_ == total_;
  if (terminal_ || last || steady_clock::now() - printed_ >= kLogInterval) print(detail);
}

void Progress::print(const std::string& detail) {
  printed_ = steady_clock::now();
  const double elapsed = std::chrono::duration<double>(printed_ - started_).count();
  const std::string line = fmt::format("{} {}/{}  {:.0f} s  {}", what_, done_, total_, elapsed, detail);
  const std::string shown = line.substr(0, 79);  // one terminal row
  if (terminal_) {
    fmt::print(stderr, "\r\x1b[K{}", shown);
  } else {
    fmt::print(stderr, "{}\n", shown);
  }
  std::fflush(stderr);
}

}  // namespace firkin
