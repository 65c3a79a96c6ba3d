#include "train/formats.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <istream>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"
#include "results/results.h"

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

// Of at most eight bytes.
uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes.size(); ++i) value |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

// The comment of a whole archive, where the content ends with one.
std::optional<std::string_view> comment_in(std::string_view content) {
  content.remove_prefix(content.size() - std::min(content.size(), kEndOfCheckpoint));
  if (content.size() < kEndRecord) return std::nullopt;
  for (size_t at = content.size() - kEndRecord + 1; at-- > 0;) {
    if (!content.substr(at).starts_with(kEndOfArchive)) continue;
    const size_t length = little_endian(content.substr(at + kEndRecord - 2, 2));
    if (at + kEndRecord + length == content.size() && length > kChecksumText) return content.substr(at + kEndRecord);
  }
  return std::nullopt;
}

CheckpointHead head_from(const nlohmann::json& json, const std::filesystem::path& file) {
  const auto incomplete = [&file] { refuse_file(file, "damaged: its head is incomplete"); };
  if (!json.contains(kStepKey) || !json[kStepKey].is_number_integer() || !json.contains(kAboutKey)) incomplete();
  CheckpointHead head{.step = json[kStepKey].get<int64_t>(), .held_loss = {}, .about = json[kAboutKey]};
  if (head.step < 0) incomplete();
  if (!json.contains(kHeldLossKey)) return head;
  if (!json[kHeldLossKey].is_number()) incomplete();
  head.held_loss = json[kHeldLossKey].get<double>();
  return head;
}

}  // namespace

void refuse_file(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

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
    refuse_file(file, may_be ? "truncated, or not a checkpoint of firkin train" : "not a checkpoint of firkin train");
  }
  nlohmann::json json;
  try {
    json = parse_json(comment->substr(0, comment->size() - kChecksumText), file.string(), "a checkpoint's head");
  } catch (const InputError&) {
    refuse_file(file, "not a checkpoint of firkin train");
  }
  if (!json.is_object() || !json.contains(kFormatKey) || !json[kFormatKey].is_number_integer()) {
    refuse_file(file, "not a checkpoint of firkin train");
  }
  if (json[kFormatKey] != kFormat) {
    refuse_file(file, fmt::format("format {}; this version of Firkin reads format {}", dump_json(json[kFormatKey]), kFormat));
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
    if (!content.read(piece.data(), static_cast<std::streamsize>(piece.size()))) refuse_file(file, "cannot be read to its end");
    checksum = crc32(piece, checksum);
  }
  std::string stated(kChecksumText, '\0');
  content.read(stated.data(), kChecksumText);
  const std::string found = checksum_text(checksum);
  if (found == stated) return;
  const bool is_text = std::ranges::all_of(stated, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  refuse_file(file, fmt::format("damaged: its checksum is {}, not {}as it says", found, is_text ? stated + " " : ""));
}

CheckpointHead read_checkpoint_head(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary | std::ios::ate);
  if (!in) refuse_file(file, fmt::format("cannot be read: {}", std::strerror(errno)));
  const auto size = static_cast<size_t>(std::max<std::streamoff>(0, in.tellg()));
  std::string end(std::min(size, kEndOfCheckpoint), '\0');
  in.seekg(static_cast<std::streamoff>(size - end.size()));
  if (!in.read(end.data(), static_cast<std::streamsize>(end.size())))
    refuse_file(file, fmt::format("cannot be read: {}", std::strerror(errno)));
  return parse_checkpoint_head(end, file);
}

namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kLongestHeader = 100'000'000;  // as the format's own reader has it
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kDtype = "dtype";
constexpr const char* kShape = "shape";
constexpr const char* kOffsets = "data_offsets";

constexpr std::array kDtypeBytes = {std::pair{"F32", 4}, std::pair{"F64", 8}, std::pair{"BF16", 2}, std::pair{"F16", 2},
                                    std::pair{"I64", 8}};

// The numbers of an array, each at least 0; nothing when it is anything else.
std::optional<std::vector<int64_t>> counts_in(const nlohmann::json& entry, const char* key) {
  if (!entry.is_object() || !entry.contains(key) || !entry[key].is_array()) return std::nullopt;
  std::vector<int64_t> counts;
  for (const nlohmann::json& value : entry[key]) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0) return std::nullopt;
    counts.push_back(value.get<int64_t>());
  }
  return counts;
}

// tensor_bytes: all that stands behind the header, from byte `first` of the file on.
StoredTensor stored_tensor(const nlohmann::json& entry, const std::string& name, uint64_t first, uint64_t tensor_bytes,
                           const std::filesystem::path& file) {
  const auto shape = counts_in(entry, kShape);
  const auto offsets = counts_in(entry, kOffsets);
  if (!shape || !offsets || offsets->size() != 2 || !entry.contains(kDtype) || !entry[kDtype].is_string()) {
    refuse_file(file, fmt::format("{}: expected a dtype, a shape and two data_offsets", name));
  }
  StoredTensor tensor{.dtype = entry[kDtype].get<std::string>(), .shape = *shape};
  tensor.bytes = bytes_of_dtype(tensor.dtype);
  if (tensor.bytes == 0) refuse_file(file, fmt::format("{}: dtype {}; expected F32, F64, BF16, F16 or I64", name, tensor.dtype));
  for (const int64_t size : *shape) {
    if (size > 0 && tensor.bytes > tensor_bytes / static_cast<uint64_t>(size)) refuse_file(file, name + ": more bytes than there are");
    tensor.bytes *= static_cast<uint64_t>(size);
  }
  const auto begin = static_cast<uint64_t>(offsets->front());
  const auto end = static_cast<uint64_t>(offsets->back());
  if (begin > end || end > tensor_bytes || end - begin != tensor.bytes) {
    refuse_file(file, fmt::format("{}: bytes {} to {} of {}; expected {} of them", name, begin, end, tensor_bytes, tensor.bytes));
  }
  tensor.first = first + begin;
  return tensor;
}

}  // namespace

uint64_t bytes_of_dtype(std::string_view dtype) {
  for (const auto& [name, bytes] : kDtypeBytes) {
    if (dtype == name) return static_cast<uint64_t>(bytes);
  }
  return 0;
}

std::string safetensors_header(const std::map<std::string, StoredTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{kDtype, tensor.dtype}, {kShape, tensor.shape}, {kOffsets, {offset, offset + tensor.bytes}}};
    offset += tensor.bytes;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // tensors begin at a multiple of 8
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  return length + text;
}

std::map<std::string, StoredTensor> parse_safetensors_header(std::string_view content, const std::filesystem::path& file) {
  const uint64_t length = little_endian(content.substr(0, kLengthBytes));
  if (content.size() < kLengthBytes || length > kLongestHeader || length > content.size() - kLengthBytes) {
    refuse_file(file, "truncated, or not a safetensors file");
  }
  const nlohmann::json header = parse_json(content.substr(kLengthBytes, length), file.string(), "the header of a safetensors file");
  if (!header.is_object()) refuse_file(file, "not a safetensors header; expected an object of tensors");
  const uint64_t first = kLengthBytes + length;
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadata) tensors[name] = stored_tensor(entry, name, first, content.size() - first, file);
  }
  return tensors;
}

namespace {

constexpr int64_t kTokenBytes = 2;
constexpr int64_t kHeaderBytes = int64_t{256} * 4;
constexpr int32_t kMagic = 20240520;

int32_t header_word(std::string_view content, size_t index) {
  return static_cast<int32_t>(little_endian(content.substr(index * 4, 4)));
}

}  // namespace

TokenLayout parse_token_layout(std::string_view content, const std::filesystem::path& file) {
  const auto size = static_cast<int64_t>(content.size());
  if (size == 0) refuse_file(file, "an empty file; expected 16-bit tokens");
  if (size % kTokenBytes != 0) refuse_file(file, fmt::format("{} bytes; expected 16-bit tokens, an even number", size));
  if (size < kHeaderBytes || header_word(content, 0) != kMagic) return {.first = 0, .tokens = size / kTokenBytes};
  const int32_t version = header_word(content, 1);
  if (version != 1) refuse_file(file, fmt::format("a header of version {}; expected version 1, of 16-bit tokens", version));
  const int64_t count = header_word(content, 2);
  const int64_t there = (size - kHeaderBytes) / kTokenBytes;
  if (count < 1 || count > there) {
    refuse_file(file, there < 1 ? "a header without tokens; expected at least one"
                                : fmt::format("its header says {} tokens; expected 1 to {}, the tokens in the file", count, there));
  }
  return {.first = kHeaderBytes, .tokens = count};
}

}  // namespace firkin
