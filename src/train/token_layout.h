// Where the tokens of a .bin file lie: little-endian uint16, plain (as nanoGPT's data/*/prepare.py writes them) or behind llm.c's header
// (dev/data/data_common.py: 256 int32, of which [0] = 20240520, [1] = 1, [2] = the number of tokens). Without LibTorch, so that it can be
// read, and fuzzed, on its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace firkin {

struct TokenLayout {
  int64_t first = 0;   // byte of the file
  int64_t tokens = 0;  // at least one, all of them in the file
};

// Throws InputError that names `file` when the content is empty, of an odd number of bytes, of another version of the header, or of fewer
// tokens than its header says.
TokenLayout parse_token_layout(std::string_view content, const std::filesystem::path& file);

}  // namespace firkin
