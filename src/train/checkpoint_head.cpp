#include "train/checkpoint_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>

#include "base/checksum.h"
#include "firkin/base/error.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "results/training.h"

namespace firkin {
namespace {

constexpr int kFormat = 1;
constexpr const char* kFormatKey = "firkin_checkpoint";
constexpr const char* kStepKey = "step";
constexpr const char* kAboutKey = "about";

// The end of a zip archive (PKWARE's APPNOTE, 4.3.16): a record of 22 bytes, whose last two are the length of the comment behind it.
constexpr std::string_view kEndOfArchive = "PK\5\6";
constexpr size_t kEndRecord = 22;
constexpr size_t kChecksumText = 8;  // in hexadecimal
static_assert(kEndOfCheckpoint == kMostComment + kEndRecord);

[[noreturn]] void refuse_head(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

// The comment of a whole archive, where the content ends with one.
std::optional<std::string_view> comment_in(std::string_view content) {
  content.remove_prefix(content.size() - std::min(content.size(), kEndOfCheckpoint));
  if (content.size() < kEndRecord) return std::nullopt;
  for (size_t at = content.size() - kEndRecord + 1; at-- > 0;) {
    if (!content.substr(at).starts_with(kEndOfArchive)) continue;
    const auto byte = [&](size_t place) { return static_cast<size_t>(static_cast<unsigned char>(content[at + place])); };
    const size_t length = byte(20) | byte(21) << 8;
    if (at + kEndRecord + length == content.size() && length > kChecksumText) return content.substr(at + kEndRecord);
  }
  return std::nullopt;
}

CheckpointHead head_from(const nlohmann::json& json, const std::filesystem::path& file) {
  const auto incomplete = [&file] { refuse_head(file, "damaged: its head is incomplete"); };
  if (!json.contains(kStepKey) || !json[kStepKey].is_number_integer() || !json.contains(kAboutKey)) incomplete();
  CheckpointHead head{.step = json[kStepKey].get<int64_t>(), .held_loss = {}, .about = json[kAboutKey]};
  if (head.step < 0) incomplete();
  if (!json.contains(kHeldLossKey)) return head;
  if (!json[kHeldLossKey].is_number()) incomplete();
  head.held_loss = json[kHeldLossKey].get<double>();
  return head;
}

}  // namespace

std::string comment_of(const CheckpointHead& head) {
  nlohmann::json comment = {{kFormatKey, kFormat}, {kStepKey, head.step}, {kAboutKey, head.about}};
  if (head.held_loss) comment[kHeldLossKey] = *head.held_loss;
  return dump_json(comment) + "\n";
}

std::string checksum_text(uint32_t checksum) {
  return fmt::format("{:08x}", checksum);
}

CheckpointHead parse_checkpoint_head(std::string_view content, const std::filesystem::path& file) {
  const auto comment = comment_in(content);
  if (!comment) {
    const bool may_be = content.starts_with("PK\3\4") || content.size() >= kEndOfCheckpoint;
    refuse_head(file, may_be ? "cut short, or no checkpoint of firkin train" : "no checkpoint of firkin train");
  }
  nlohmann::json json;
  try {
    json = parse_json(comment->substr(0, comment->size() - kChecksumText), file.string(), "a checkpoint's head");
  } catch (const InputError&) {
    refuse_head(file, "no checkpoint of firkin train");
  }
  if (!json.is_object() || !json.contains(kFormatKey) || !json[kFormatKey].is_number_integer()) {
    refuse_head(file, "no checkpoint of firkin train");
  }
  if (json[kFormatKey] != kFormat) {
    refuse_head(file, fmt::format("format {}; this version of Firkin reads format {}", dump_json(json[kFormatKey]), kFormat));
  }
  return head_from(json, file);
}

void check_checksum(std::istream& content, const std::filesystem::path& file) {
  content.seekg(0, std::ios::end);
  auto left = static_cast<size_t>(std::max<std::streamoff>(kChecksumText, content.tellg())) - kChecksumText;
  content.seekg(0);
  uint32_t checksum = 0;
  std::string piece(kMiB, '\0');
  for (; left > 0; left -= piece.size()) {
    piece.resize(std::min(left, piece.size()));
    if (!content.read(piece.data(), static_cast<std::streamsize>(piece.size()))) refuse_head(file, "cannot be read to its end");
    checksum = crc32(piece, checksum);
  }
  std::string stated(kChecksumText, '\0');
  content.read(stated.data(), kChecksumText);
  const std::string found = checksum_text(checksum);
  if (found == stated) return;
  const bool is_text = std::ranges::all_of(stated, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  refuse_head(file, fmt::format("damaged: its checksum is {}, not {}as it says", found, is_text ? stated + " " : ""));
}

CheckpointHead read_checkpoint_head(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) refuse_head(file, fmt::format("cannot be read: {}", std::strerror(errno)));
  const auto size = static_cast<size_t>(std::max<std::streamoff>(0, in.tellg()));
  std::string end(std::min(size, kEndOfCheckpoint), '\0');
  in.seekg(static_cast<std::streamoff>(size - end.size()));
  if (!in.read(end.data(), static_cast<std::streamsize>(end.size())))
    refuse_head(file, fmt::format("cannot be read: {}", std::strerror(errno)));
  return parse_checkpoint_head(end, file);
}

}  // namespace firkin
