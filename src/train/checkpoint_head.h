// What a checkpoint says of itself: one line of JSON in the comment of its zip archive, and the CRC-32 of all that stands before that.
// Without LibTorch, so that it can be read, and fuzzed, on its own.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace firkin {

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

}  // namespace firkin
