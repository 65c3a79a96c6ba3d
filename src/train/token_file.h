// Training data as it lies in a file: any text, whose bytes are the tokens, or a .bin of tokens of 16 bits.
//
//   const TokenFile data("book.txt");
//   data.read(100, window);   // tokens 100, 101, ...
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace firkin {

// The file is mapped into memory, not read: one larger than memory is fine, and ranks on one machine share its pages. Thread-safe. The file
// must not become shorter meanwhile.
//
// A name that ends in .bin: tokens of 16 bits (token_layout.h). Any other name: bytes.
class TokenFile {
 public:
  // Throws InputError when the file cannot be read or is empty, and as parse_token_layout().
  explicit TokenFile(const std::filesystem::path& file);

  int64_t size() const { return size_; }  // tokens
  bool is_text() const { return token_bytes_ == 1; }
  const std::filesystem::path& path() const { return path_; }

  // Tokens [first, first + out.size()), which must lie in the file.
  void read(int64_t first, std::span<int64_t> out) const;

  // Reads all of it. Throws InputError, which names the first token that does not fit, unless every token is below `vocab_size`.
  void check_vocabulary(int64_t vocab_size) const;

 private:
  int64_t token(int64_t place) const;

  std::filesystem::path path_;
  std::shared_ptr<const std::byte> map_;
  const std::byte* tokens_ = nullptr;
  int64_t token_bytes_ = 1;
  int64_t size_ = 0;
};

}  // namespace firkin
