#include "train/token_layout.h"

#include <fmt/format.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int64_t kTokenBytes = 2;
constexpr int64_t kHeaderBytes = 256 * 4;
constexpr int32_t kMagic = 20240520;

[[noreturn]] void refuse_layout(const std::filesystem::path& file, const std::string& what) {
  throw InputError(fmt::format("{}: {}", file.string(), what));
}

int32_t header_word(std::string_view content, size_t index) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word |= uint32_t{static_cast<unsigned char>(content[index * 4 + i])} << (8 * i);
  return static_cast<int32_t>(word);
}

}  // namespace

TokenLayout parse_token_layout(std::string_view content, const std::filesystem::path& file) {
  const auto size = static_cast<int64_t>(content.size());
  if (size == 0) refuse_layout(file, "an empty file; expected 16-bit tokens");
  if (size % kTokenBytes != 0) refuse_layout(file, fmt::format("{} bytes; expected 16-bit tokens, an even number", size));
  if (size < kHeaderBytes || header_word(content, 0) != kMagic) return {.first = 0, .tokens = size / kTokenBytes};
  const int32_t version = header_word(content, 1);
  if (version != 1) refuse_layout(file, fmt::format("a header of version {}; expected version 1, of 16-bit tokens", version));
  const int64_t count = header_word(content, 2);
  const int64_t there = (size - kHeaderBytes) / kTokenBytes;
  if (count < 1 || count > there) {
    refuse_layout(file, there < 1 ? "a header without tokens; expected at least one"
                                  : fmt::format("its header says {} tokens; expected 1 to {}, which are there", count, there));
  }
  return {.first = kHeaderBytes, .tokens = count};
}

}  // namespace firkin
