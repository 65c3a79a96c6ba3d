#include "report/images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "page.h"

namespace firkin {
namespace {

// An installed program may outlive the Python that it was built with.
std::string python() {
  const char* named = std::getenv("FIRKIN_PYTHON");
  if (named && *named) return named;
  std::error_code ignored;
  return std::filesystem::exists(FIRKIN_BUILD_PYTHON, ignored) ? FIRKIN_BUILD_PYTHON : "python3";
}

// A file that is gone at the end.
class ScratchFile {
 public:
  ScratchFile(const std::filesystem::path& path, std::string_view content) : path_(path) { write_file_atomically(path_, content); }
  ~ScratchFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

 private:
  std::filesystem::path path_;
};

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t start = text.rfind('\n');
  return start == std::string::npos ? text : text.substr(start + 1);
}

// Runs a program and waits for it; its standard output and error go to `log`. Returns the exit code, 128 + signal when it was killed.
int run_program(std::vector<std::string> words, const std::filesystem::path& log) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_TRUNC, 0);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int failed = posix_spawnp(&child, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw RuntimeError(fmt::format("{}: cannot be started: {}", words[0], std::strerror(failed)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw RuntimeError(fmt::format("{}: cannot be waited for: {}", words[0], std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::vector<std::filesystem::path> write_chart_images(std::span<const Chart> charts, ImageFormat format,
                                                      const std::filesystem::path& folder) {
  nlohmann::json list = nlohmann::json::array();
  for (const Chart& chart : charts) list.push_back({{"id", chart.id}, {"spec", standalone_spec(chart)}});
  const std::string suffix = format == ImageFormat::kPng ? "png" : "svg";
  const std::filesystem::path scratch = folder / fmt::format(".charts.{}", getpid());
  const std::filesystem::path input = scratch.string() + ".json";
  const std::filesystem::path log = scratch.string() + ".log";
  const ScratchFile input_file(input, list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  const ScratchFile log_file(log, "");
  const int code = run_program({python(), "-c", std::string(render_charts_script()), input.string(), suffix, folder.string()}, log);
  if (code != 0) {
    throw RuntimeError(
        fmt::format("{}: the charts were not rendered (exit code {}): {}; FIRKIN_PYTHON names a Python with vl-convert-python", python(),
                    code, last_line(read_file(log))));
  }
  std::vector<std::filesystem::path> paths;
  for (const Chart& chart : charts) paths.push_back(folder / fmt::format("{}.{}", chart.id, suffix));
  return paths;
}

}  // namespace firkin
