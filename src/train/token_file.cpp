#include "train/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "firkin/base/error.h"
#include "train/token_layout.h"

namespace firkin {
namespace {

[[noreturn]] void refuse_data(const std::filesystem::path& file, const std::string& what) {
  throw InputError(fmt::format("{}: {}", file.string(), what));
}

struct MappedFile {
  std::shared_ptr<const std::byte> bytes;
  int64_t size = 0;
};

MappedFile map_file(const std::filesystem::path& path) {
  const auto fail = [&path] { refuse_data(path, fmt::format("cannot be read: {}", std::strerror(errno))); };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail();
  const auto closed = std::shared_ptr<void>(nullptr, [file](void*) { close(file); });
  struct stat status {};
  if (fstat(file, &status) != 0) fail();
  if (S_ISDIR(status.st_mode)) refuse_data(path, "cannot be read: it is a folder");
  if (status.st_size == 0) refuse_data(path, "an empty file; expected text, or a .bin of 16-bit tokens");
  const auto size = static_cast<size_t>(status.st_size);
  void* map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  if (map == MAP_FAILED) fail();
  const auto unmap = [size](const std::byte* bytes) { munmap(const_cast<std::byte*>(bytes), size); };
  return {std::shared_ptr<const std::byte>(static_cast<const std::byte*>(map), unmap), status.st_size};
}

}  // namespace

TokenFile::TokenFile(const std::filesystem::path& file) : path_(file) {
  const MappedFile mapped = map_file(file);
  map_ = mapped.bytes;
  tokens_ = mapped.bytes.get();
  size_ = mapped.size;
  if (file.extension() != ".bin") return;
  token_bytes_ = 2;
  const TokenLayout layout = parse_token_layout({reinterpret_cast<const char*>(tokens_), static_cast<size_t>(mapped.size)}, file);
  tokens_ += layout.first;
  size_ = layout.tokens;
}

int64_t TokenFile::token(int64_t place) const {
  if (token_bytes_ == 1) return std::to_integer<int64_t>(tokens_[place]);
  return std::to_integer<int64_t>(tokens_[2 * place]) | std::to_integer<int64_t>(tokens_[2 * place + 1]) << 8;
}

void TokenFile::read(int64_t first, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = token(first + static_cast<int64_t>(i));
}

void TokenFile::check_vocabulary(int64_t vocab_size) const {
  if (vocab_size >= int64_t{1} << (8 * token_bytes_)) return;
  for (int64_t i = 0; i < size_; ++i) {
    if (token(i) < vocab_size) continue;
    refuse_data(path_, fmt::format("token {} at place {}; expected tokens below the model's vocab_size {}", token(i), i, vocab_size));
  }
}

}  // namespace firkin
