#include "data_folder.h"

#include <fmt/format.h>

#include <cstdlib>
#include <system_error>

#include "firkin/base/error.h"

namespace firkin::cli {
namespace {

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

}  // namespace

std::filesystem::path data_folder() {
  const char* named = std::getenv("FIRKIN_DATA");
  if (named && *named) {
    if (!is_folder(named)) throw InputError(fmt::format("FIRKIN_DATA={}: expected the folder with Firkin's data", named));
    return named;
  }
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path installed = (program.parent_path() / FIRKIN_INSTALLED_DATA).lexically_normal();
  if (is_folder(installed)) return installed;
  if (is_folder(FIRKIN_SOURCE_DATA)) return FIRKIN_SOURCE_DATA;
  throw RuntimeError(
      fmt::format("no data: neither {} nor {} is there; FIRKIN_DATA can name the folder", installed.string(), FIRKIN_SOURCE_DATA));
}

std::filesystem::path shipped_text() {
  return data_folder() / "text" / "cooperage.txt";
}

}  // namespace firkin::cli
