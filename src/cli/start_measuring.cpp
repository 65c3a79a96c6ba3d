// The program without LibTorch, whose libraries take 0.2 to 0.8 s to load. To measure it becomes firkin-measure: loading
// a library late instead would keep two copies of every module's state apart.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "flags.h"

namespace firkin::cli {
namespace {

// In a build folder it is beside this program; an installed one is started by a script that finds LibTorch.
std::filesystem::path measuring_program() {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* place : {"firkin-measure", FIRKIN_INSTALLED_MEASURE}) {
    const std::filesystem::path program = folder / place;
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(program, ignored) || access(program.c_str(), X_OK) != 0) continue;
    if (!std::filesystem::equivalent(program, "/proc/self/exe", ignored)) return program;  // else it would start itself for ever
  }
  return {};
}

}  // namespace

bool can_measure() {
  return !measuring_program().empty();
}

int measure(const Measurement& /*measurement*/) {
  std::vector<std::string> words = command_line();
  words.insert(words.begin(), "firkin");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::filesystem::path program = measuring_program();
  execv(program.c_str(), arguments.data());
  throw RuntimeError(fmt::format("{}: {}", program.string(), std::strerror(errno)));
}

}  // namespace firkin::cli
