#include "firkin/base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

namespace firkin {
namespace {

using std::chrono::steady_clock;

constexpr size_t kColumns = 80;  // if the terminal does not report its width

// Characters in a row of the terminal.
size_t columns_of(std::FILE* terminal) {
  winsize size{};
  if (ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kColumns;
}

bool is_silent = false;

}  // namespace

size_t text_columns() {
  return std::clamp<size_t>(isatty(fileno(stdout)) == 1 ? columns_of(stdout) : kColumns, 40, 120);
}

void Progress::silence() {
  is_silent = true;
}

Progress::Progress(std::string what, int total, bool enabled, std::FILE* out)
    : what_(std::move(what)),
      total_(total),
      enabled_(enabled && !is_silent),
      out_(out),
      terminal_(isatty(fileno(out)) == 1),
      started_(steady_clock::now()),
      printed_(started_) {
  if (enabled_) print("");
}

void Progress::advance(const std::string& detail) {
  ++done_;
  if (!enabled_) return;
  constexpr auto kLogInterval = std::chrono::seconds(10);
  const bool last = done_ == total_;
  if (terminal_ || last || steady_clock::now() - printed_ >= kLogInterval) print(detail);
  if (last) finish();
}

void Progress::finish() {
  if (!line_is_open_) return;
  line_is_open_ = false;
  std::fputc('\n', out_);
  std::fflush(out_);
}

void Progress::print(const std::string& detail) {
  printed_ = steady_clock::now();
  const double elapsed = std::chrono::duration<double>(printed_ - started_).count();
  const std::string of = total_ > 0 ? fmt::format("/{}", total_) : "";
  const std::string line = fmt::format("{} {}{}  {:.0f} s  {}", what_, done_, of, elapsed, detail);
  if (terminal_) {
    constexpr const char* kClearLine = "\r\x1b[K";
    // The last column stays free: a terminal that wraps there would begin a row that is never cleared.
    fmt::print(out_, "{}{:.{}}", kClearLine, line, columns_of(out_) - 1);
    line_is_open_ = true;
  } else {
    fmt::print(out_, "{}\n", line);
  }
  std::fflush(out_);
}

}  // namespace firkin
