#include "firkin/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <system_error>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// A temporary file beside its target; removed unless it was renamed into place.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::filesystem::path& target) : target_(target) {
    // Not mkstemp(): its files are private, and giving them the usual mode needs the umask, which can only be read by
    // setting it for all threads.
    std::random_device random;
    do {
      name_ = fmt::format("{}.{:08x}", target.string(), random());
      descriptor_ = open(name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EEXIST);
    if (descriptor_ < 0) fail();
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!renamed_) unlink(name_.c_str());
  }

  void write_all(std::string_view content) {
    while (!content.empty()) {
      const ssize_t written = write(descriptor_, content.data(), content.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      content.remove_prefix(static_cast<size_t>(written));
    }
  }

  void rename_to_target() {
    if (fsync(descriptor_) != 0 && errno != EINVAL) fail();  // EINVAL: this file system cannot sync
    const int closed = close(descriptor_);
    descriptor_ = -1;
    if (closed != 0 || std::rename(name_.c_str(), target_.c_str()) != 0) fail();
    renamed_ = true;
  }

 private:
  [[noreturn]] void fail() const {
    const int reason = errno;
    throw RuntimeError(fmt::format("{}: cannot be written: {}", target_.string(), std::strerror(reason)));
  }

  std::filesystem::path target_;
  std::string name_;
  int descriptor_ = -1;
  bool renamed_ = false;
};

// Reads a whole file in pieces and calls `check`, which may throw, on each before reading the next. `expected` ends
// messages.
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
  }
  if (std::ferror(in.get())) fail(std::strerror(errno));
  return content;
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
  TemporaryFile file(path);
  file.write_all(content);
  file.rename_to_target();
}

void occupy_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDWR);  // gets the lowest free number
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
}

}  // namespace firkin
