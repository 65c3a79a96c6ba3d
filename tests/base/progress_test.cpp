#include "firkin/base/progress.h"

#include "../test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

namespace firkin {
namespace {

// A terminal of `columns` columns, and what was written to it.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : master_(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK)) {
    if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0) throw std::runtime_error("no pseudo terminal");
    out = fdopen(open(ptsname(master_), O_RDWR | O_NOCTTY), "w");
    termios mode{};
    tcgetattr(fileno(out), &mode);
    mode.c_oflag &= ~static_cast<tcflag_t>(OPOST);  // a line's end stays "\n"
    tcsetattr(fileno(out), TCSANOW, &mode);
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ioctl(fileno(out), TIOCSWINSZ, &size);
  }
  ~Terminal() {
    std::fclose(out);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // What was written since the last call.
  std::string read_all() const {
    std::string text;
    char chunk[4096];
    for (ssize_t size = 0; (size = read(master_, chunk, sizeof chunk)) > 0;) text.append(chunk, static_cast<size_t>(size));
    return text;
  }

  std::FILE* out;

 private:
  int master_;
};

constexpr const char* kClearLine = "\r\x1b[K";

TEST(Progress, EndsItsLineWhenTheLastUnitIsDone) {
  const Terminal terminal(80);
  Progress progress("measuring", 2, true, terminal.out);
  progress.advance("a");
  EXPECT_THAT(terminal.read_all(), Not(HasSubstr("\n")));
  progress.advance("b");
  std::fputs("a table\n", terminal.out);
  std::fflush(terminal.out);
  EXPECT_THAT(terminal.read_all(), EndsWith("measuring 2/2  0 s  b\na table\n"));
}

TEST(Progress, EndsItsLineOnceWhenItIsAskedToAndWhenItGoes) {
  const Terminal terminal(80);
  {
    Progress progress("measuring", 9, true, terminal.out);
    terminal.read_all();
    for (int i = 0; i < 2; ++i) progress.finish();
    EXPECT_EQ(terminal.read_all(), "\n");
    progress.advance("on a new line");
    EXPECT_THAT(terminal.read_all(), StartsWith(kClearLine));
  }
  EXPECT_EQ(terminal.read_all(), "\n");
}

TEST(Progress, ClearsTheLongerTextBeforeAShorterOne) {
  const Terminal terminal(80);
  Progress progress("measuring", 9, true, terminal.out);
  progress.advance("a long text");
  terminal.read_all();
  progress.advance("b");
  EXPECT_EQ(terminal.read_all(), std::string(kClearLine) + "measuring 2/9  0 s  b");
}

TEST(Progress, StaysWithinTheTerminalsRowAndCutsBetweenCharacters) {
  const std::tuple<unsigned short, std::string, std::string> cases[] = {
      {30, std::string(100, 'x'), std::string(9, 'x')},
      {25, "\u00b5\u00b5\u00b5\u00b5\u00b5\u00b5", "\u00b5\u00b5\u00b5\u00b5"},
      {0, std::string(100, 'x'), std::string(59, 'x')},  // as if it had eighty columns
  };
  for (const auto& [columns, text, shown] : cases) {
    const Terminal terminal(columns);
    Progress progress("measuring", 9, true, terminal.out);
    terminal.read_all();
    progress.advance(text);
    EXPECT_EQ(terminal.read_all(), std::string(kClearLine) + "measuring 1/9  0 s  " + shown);
  }
}

TEST(Progress, IsWholeLinesInALog) {
  std::FILE* log = std::tmpfile();
  {
    Progress progress("measuring", 2, true, log);
    progress.advance("soon after the first line");
    progress.advance(std::string(100, 'x'));
  }
  std::rewind(log);
  std::vector<std::string> lines;
  char line[256];
  while (std::fgets(line, sizeof line, log) != nullptr) lines.emplace_back(line);
  std::fclose(log);
  EXPECT_THAT(lines, ElementsAre("measuring 0/2  0 s  \n", "measuring 2/2  0 s  " + std::string(100, 'x') + "\n"));
}

TEST(Progress, OfAnotherRankSaysNothing) {
  const Terminal terminal(80);
  {
    Progress progress("measuring", 1, false, terminal.out);
    progress.advance("");
  }
  EXPECT_EQ(terminal.read_all(), "");
}

}  // namespace
}  // namespace firkin
