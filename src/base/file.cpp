#include "firkin/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <system_error>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr size_t kLongestStream = size_t{1} << 28;  // bytes of a pipe or a device, which may never end

// Reads a file in pieces and calls `check`, which may throw, on each. `expected` ends messages.
template <typename Check>
std::string read_pieces(const std::filesystem::path& path, const std::string& expected, const Check& check) {
  const auto fail = [&](const char* reason) { throw InputError(fmt::format("{}: cannot be read: {}{}", path.string(), reason, expected)); };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) fail("it is a folder");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (!in) fail(std::strerror(errno));

  std::string content;
  std::array<char, size_t{1} << 16> chunk;
  while (const size_t count = std::fread(chunk.data(), 1, chunk.size(), in.get())) {
    check(std::string_view(chunk.data(), count));
    content.append(chunk.data(), count);
    if (content.size() > kLongestStream && !std::filesystem::is_regular_file(path, ignored))
      fail("no regular file, and longer than 256 MiB");
  }
  if (std::ferror(in.get())) fail(std::strerror(errno));
  return content;
}

// Returns false, with the reason in errno, if not all of it can be written.
bool write_all(int file, std::string_view content) {
  while (!content.empty()) {
    const ssize_t written = write(file, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    content.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  return read_pieces(path, "", [](std::string_view) {});
}

std::string read_text_file(const std::filesystem::path& path, size_t longest_line, const std::string& expected) {
  int64_t line = 1;
  size_t line_length = 0;
  return read_pieces(path, "; expected " + expected, [&](std::string_view piece) {
    for (const char c : piece) {
      line_length = c == '\n' ? 0 : line_length + 1;
      line += c == '\n' ? 1 : 0;
      if (line_length <= longest_line) continue;
      throw InputError(fmt::format("{}:{}: the line is longer than {} bytes; expected {}", path.string(), line, longest_line, expected));
    }
  });
}

void write_file_atomically(const std::filesystem::path& path, std::string_view content) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) throw RuntimeError(fmt::format("{}: cannot be created: {}", path.parent_path().string(), error.message()));
  }
  // The temporary file lies beside its target and has no name until it is whole, so that a killed process leaves nothing
  // behind. On file systems that cannot do that, such as NFS, and without /proc, it has a name at once. mkstemp() will not
  // do, because it makes files that only their owner can read.
  const std::string name = fmt::format("{}.{:08x}", path.string(), std::random_device()());
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  int file = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  bool is_named = false;
  const auto fail = [&] {
    const int reason = errno;
    if (file >= 0) close(file);
    if (is_named) unlink(name.c_str());
    throw RuntimeError(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(reason)));
  };
  const auto write_whole = [&] {
    if (file < 0 || !write_all(file, content)) fail();
    if (fsync(file) != 0 && errno != EINVAL) fail();  // EINVAL: this file system cannot sync
  };
  if (file >= 0) {
    write_whole();
    const std::string open_file = fmt::format("/proc/self/fd/{}", file);
    is_named = linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    if (!is_named) close(file);
  }
  if (!is_named) {
    file = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    is_named = file >= 0;
    write_whole();
  }
  if (close(std::exchange(file, -1)) != 0 || std::rename(name.c_str(), path.c_str()) != 0) fail();
}

void occupy_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDWR);  // gets the lowest free number
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
}

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
  // Any other error means that the file system has no locks.
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
  std::error_code error, ignored;
  fs::path place = fs::absolute(folder, error);
  if (error) refuse(what, folder, "the current folder is not there: " + error.message());
  while (!is_there(place)) place = place.parent_path();
  if (!fs::is_directory(place, ignored)) refuse(what, folder, fmt::format("{} is not a folder", place.string()));
  std::string trial = (place / ".firkin-check-XXXXXX").string();
  const std::string block(4096, '\n');  // more than some file systems store in the inode
  const int file = mkostemp(trial.data(), O_CLOEXEC);
  if (file >= 0) unlink(trial.c_str());
  const bool written = file >= 0 && write_all(file, block);
  const int reason = errno;
  if (file >= 0) close(file);
  if (!written) refuse(what, folder, fmt::format("{} cannot be written to: {}", place.string(), std::strerror(reason)));
}

OutputFolder::OutputFolder(const fs::path& folder, const std::string& what) {
  check_output_folder(folder, what);
  folder_ = fs::absolute(folder);
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
