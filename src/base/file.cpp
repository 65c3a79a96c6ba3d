#include "firkin/base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
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
    // Not mkstemp(), whose files are private: their mode could only be mended with the umask, which threads share.
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
    if (fsync(descriptor_) != 0 && errno != EINVAL) fail();  // EINVAL: a file system that cannot
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

// The whole content, each piece of which must pass `check` before the next is read. expected: ends messages.
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

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// [0][b]: the checksum's change by the byte b; [k][b]: by b and k zero bytes behind it.
constexpr Tables make_tables() {
  constexpr uint32_t kReversedPolynomial = 0xedb88320;
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < tables.size(); ++k) tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t byte_at(std::string_view text, size_t place) {
  return static_cast<unsigned char>(text[place]);
}

uint32_t four_bytes_at(std::string_view text, size_t place) {
  return byte_at(text, place) | byte_at(text, place + 1) << 8 | byte_at(text, place + 2) << 16 | byte_at(text, place + 3) << 24;
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
  write_file_atomically(path, [content](const auto& write) { write(content); });
}

void write_file_atomically(const std::filesystem::path& path,
                           const std::function<void(const std::function<void(std::string_view piece)>& write)>& content) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) throw RuntimeError(fmt::format("{}: cannot be created: {}", path.parent_path().string(), error.message()));
  }
  TemporaryFile file(path);
  content([&file](std::string_view piece) { file.write_all(piece); });
  file.rename_to_target();
}

void occupy_standard_descriptors() {
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDWR);  // always the lowest number that is free
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor >= 0) close(descriptor);
}

uint32_t crc32(std::string_view piece, uint32_t before) {
  uint32_t value = ~before;
  size_t at = 0;
  for (; at + 8 <= piece.size(); at += 8) {
    const uint32_t low = four_bytes_at(piece, at) ^ value;
    const uint32_t high = four_bytes_at(piece, at + 4);
    value = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
            kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; at < piece.size(); ++at) value = (value >> 8) ^ kTables[0][(value ^ byte_at(piece, at)) & 0xff];
  return ~value;
}

}  // namespace firkin
