// What training files hold, as far as it can be read, and fuzzed, without LibTorch: heads of checkpoints and safetensors files, layouts of
// tokens.
#pragma once

#include <iosfwd>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

// Throws InputError: "FILE: WHY".
[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& why);

// What a checkpoint says of itself: one line of JSON in the comment of its zip archive, and the CRC-32 of all that stands before that.

struct CheckpointHead {
  int64_t step = 0;                      // steps that were done
  std::optional<double> held_loss = {};  // of the held part, after that step
  nlohmann::json about = {};             // what was trained, on what; an object, of less than 60 KB as text
};

// The comment, less its checksum: "{...}\n". The checksum follows as eight hexadecimal digits (checksum_text()).
std::string comment_of(const CheckpointHead& head);
std::string checksum_text(uint32_t checksum);

// Bytes of an archive's end that are enough for parse_checkpoint_head(); and the most that a comment may have, with its checksum.
inline constexpr size_t kMostComment = 0xffff;
inline constexpr size_t kEndOfCheckpoint = kMostComment + 22;

// The head in a whole file, or in its last kEndOfCheckpoint bytes, without the checksum's being looked at. Throws InputError that names
// `file` and says why: no checkpoint, cut short, damaged, or of a newer format than this version of Firkin reads.
CheckpointHead parse_checkpoint_head(std::string_view content, const std::filesystem::path& file);

// Of a whole file, whose end parse_checkpoint_head() has accepted; read piece by piece. Throws InputError when the checksum is that of
// other bytes.
void check_checksum(std::istream& content, const std::filesystem::path& file);

// Reads the end of the file only. Throws as parse_checkpoint_head(), and InputError when it cannot be read.
CheckpointHead read_checkpoint_head(const std::filesystem::path& file);

// Where the tensors of a safetensors file lie: eight bytes with the length of a JSON header, the header, then the tensors' bytes
// (github.com/huggingface/safetensors, README).

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

// Where the tokens of a .bin file lie: little-endian uint16, plain (as nanoGPT's data/*/prepare.py writes them) or behind llm.c's header
// (dev/data/data_common.py: 256 int32, of which [0] = 20240520, [1] = 1, [2] = the number of tokens).

struct TokenLayout {
  int64_t first = 0;   // byte of the file
  int64_t tokens = 0;  // at least one, all of them in the file
};

// Throws InputError that names `file` when the content is empty, of an odd number of bytes, of another version of the header, or of fewer
// tokens than its header says.
TokenLayout parse_token_layout(std::string_view content, const std::filesystem::path& file);

}  // namespace firkin
