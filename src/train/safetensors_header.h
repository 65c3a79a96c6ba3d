// Where the tensors of a safetensors file lie: eight bytes with the length of a JSON header, the header, then the tensors' bytes
// (github.com/huggingface/safetensors, README). Without LibTorch, so that it can be read, and fuzzed, on its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

struct StoredTensor {
  std::string dtype;  // "F32", "F64", "BF16", "F16" or "I64"
  std::vector<int64_t> shape;
  uint64_t first = 0;  // byte of the file
  uint64_t bytes = 0;
};

// Bytes of an element; 0 for a dtype that is none of those five.
uint64_t bytes_of_dtype(std::string_view dtype);

// The header of these tensors, whose bytes lie one behind the other in the order of their names, with its length before it. `first` is not
// read.
std::string safetensors_header(const std::map<std::string, StoredTensor>& tensors);

// By name. Every tensor lies in the content, with as many bytes as its shape and dtype ask for. Throws InputError that names `file` when
// the content is no such file or is cut short, or a tensor's place in it is not one.
std::map<std::string, StoredTensor> parse_safetensors_header(std::string_view content, const std::filesystem::path& file);

}  // namespace firkin
