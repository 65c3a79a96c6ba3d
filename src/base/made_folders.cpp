#include "base/made_folders.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int kAttempts = 100;  // a process that takes folders away again does so once

}  // namespace

MadeFolders::MadeFolders(const std::filesystem::path& folder, const std::string& what) {
  if (folder.empty()) throw InputError(fmt::format("{}: no name; expected a folder", what));
  const std::string prefix = fmt::format("{} {}", what, folder.string());
  try {
    for (int attempt = 1; !make(std::filesystem::absolute(folder), prefix); ++attempt) {
      if (attempt == kAttempts) throw InputError(fmt::format("{}: cannot be made: {}", prefix, std::strerror(ENOENT)));
    }
  } catch (...) {
    remove();
    throw;
  }
}

MadeFolders::~MadeFolders() {
  remove();
}

void MadeFolders::remove() {
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) rmdir(folder->c_str());  // fails where it holds something
  made_.clear();
}

// False: a folder that was there a moment ago is gone.
bool MadeFolders::make(const std::filesystem::path& folder, const std::string& prefix) {
  std::filesystem::path place;
  for (const std::filesystem::path& part : folder) {
    place /= part;
    struct stat status {};
    if (stat(place.c_str(), &status) != 0) {
      if (mkdir(place.c_str(), 0777) == 0) {
        made_.push_back(place);
        continue;
      }
      const int reason = errno;
      if (reason != EEXIST && reason != ENOENT) {
        throw InputError(fmt::format("{}: {} cannot be made: {}", prefix, place.string(), std::strerror(reason)));
      }
      if (stat(place.c_str(), &status) != 0) {
        if (lstat(place.c_str(), &status) != 0) return false;
        throw InputError(fmt::format("{}: {} is a link to what does not exist; expected a folder", prefix, place.string()));
      }
    }
    if (!S_ISDIR(status.st_mode)) throw InputError(fmt::format("{}: {} is no folder", prefix, place.string()));
  }
  return true;
}

}  // namespace firkin
