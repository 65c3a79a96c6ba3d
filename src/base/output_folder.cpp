#include "firkin/base/output_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "firkin/base/error.h"

namespace firkin {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLockName = ".firkin-lock";

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

[[noreturn]] void refuse(const std::string& what, const fs::path& folder, const std::string& why) {
  throw InputError(fmt::format("{} {}: {}", what, folder.string(), why));
}

// "results.json" becomes "results.2.json".
fs::path numbered(const fs::path& file, int number) {
  return fmt::format("{}.{}{}", file.stem().string(), number, file.extension().string());
}

constexpr int kGone = -1, kHeldByAnother = -2;

// Opens and locks the lock file. Returns its descriptor, or kGone if its last holder has just removed it.
int take_lock(const fs::path& lock) {
  const int file = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (file < 0) return errno == ENOENT ? kGone : kHeldByAnother;  // it may belong to another user
  // Other errors: a file system without locks.
  const bool held = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  struct stat opened {};
  struct stat named {};
  const bool is_named = fstat(file, &opened) == 0 && stat(lock.c_str(), &named) == 0 && opened.st_ino == named.st_ino;
  if (!held && is_named) return file;
  close(file);
  return held ? kHeldByAnother : kGone;
}

}  // namespace

void check_output_folder(const fs::path& folder, const std::string& what) {
  if (folder.empty()) throw InputError(fmt::format("{}: no name; expected a folder", what));
  fs::path place = fs::absolute(folder);
  while (!is_there(place)) place = place.parent_path();
  std::error_code ignored;
  if (!fs::is_directory(place, ignored)) refuse(what, folder, fmt::format("{} is not a folder", place.string()));
  std::string trial = (place / ".firkin-check-XXXXXX").string();
  const std::string block(4096, '\n');  // more than some file systems store in the inode
  const int file = mkostemp(trial.data(), O_CLOEXEC);
  if (file >= 0) errno = ENOSPC;  // the reason if write() writes less than asked
  const bool written = file >= 0 && write(file, block.data(), block.size()) == static_cast<ssize_t>(block.size());
  const int reason = errno;
  if (file >= 0) {
    close(file);
    unlink(trial.c_str());
  }
  if (!written) refuse(what, folder, fmt::format("{} cannot be written to: {}", place.string(), std::strerror(reason)));
}

OutputFolder::OutputFolder(const fs::path& folder, const std::string& what) : folder_(fs::absolute(folder)) {
  check_output_folder(folder, what);
  if (!folder_.has_filename()) folder_ = folder_.parent_path();  // drop a trailing slash
  for (fs::path place = folder_; !is_there(place); place = place.parent_path()) made_.push_back(place);
  while (lock_ < 0) {  // again if a run that is ending has just removed the folder or its lock
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!error) lock_ = take_lock(folder_ / kLockName);
    if (error || lock_ == kHeldByAnother) {
      remove_what_it_made();
      refuse(what, folder, error ? "cannot be created: " + error.message() : "another run is writing into it; expected a folder for each");
    }
  }
}

OutputFolder::~OutputFolder() {
  unlink((folder_ / kLockName).c_str());
  close(lock_);
  remove_what_it_made();
}

void OutputFolder::remove_what_it_made() {
  for (const fs::path& folder : made_) rmdir(folder.c_str());  // fails, as it should, if the folder is not empty
}

std::vector<std::string> OutputFolder::set_aside(const std::vector<std::string>& files) {
  std::vector<fs::path> added;
  for (const std::string& file : files) {
    if (own_.insert(file).second) added.emplace_back(file);
  }
  while (std::ranges::any_of(added, [&](const fs::path& file) { return is_there(folder_ / numbered(file, number_)); })) ++number_;
  std::vector<std::string> names;
  for (const fs::path& file : added) {
    if (!is_there(folder_ / file)) continue;
    const fs::path name = numbered(file, number_);
    std::error_code error;
    fs::rename(folder_ / file, folder_ / name, error);
    if (error)
      throw RuntimeError(fmt::format("{}: cannot be renamed to {}: {}", (folder_ / file).string(), name.string(), error.message()));
    names.push_back(name.string());
  }
  return names;
}

}  // namespace firkin
