#include "train/safetensors_header.h"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kLongestHeader = 100'000'000;  // as the format's own reader has it
constexpr const char* kMetadata = "__metadata__";
constexpr const char* kDtype = "dtype";
constexpr const char* kShape = "shape";
constexpr const char* kOffsets = "data_offsets";

constexpr std::array kDtypeBytes = {std::pair{"F32", 4}, std::pair{"F64", 8}, std::pair{"BF16", 2}, std::pair{"F16", 2},
                                    std::pair{"I64", 8}};

[[noreturn]] void refuse_header(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

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
    refuse_header(file, fmt::format("{}: expected a dtype, a shape and two data_offsets", name));
  }
  StoredTensor tensor{.dtype = entry[kDtype].get<std::string>(), .shape = *shape};
  tensor.bytes = bytes_of_dtype(tensor.dtype);
  if (tensor.bytes == 0) refuse_header(file, fmt::format("{}: dtype {}; expected F32, F64, BF16, F16 or I64", name, tensor.dtype));
  for (const int64_t size : *shape) {
    if (size > 0 && tensor.bytes > tensor_bytes / static_cast<uint64_t>(size)) refuse_header(file, name + ": more bytes than there are");
    tensor.bytes *= static_cast<uint64_t>(size);
  }
  const auto begin = static_cast<uint64_t>(offsets->front());
  const auto end = static_cast<uint64_t>(offsets->back());
  if (begin > end || end > tensor_bytes || end - begin != tensor.bytes) {
    refuse_header(file, fmt::format("{}: bytes {} to {} of {}; expected {} of them", name, begin, end, tensor_bytes, tensor.bytes));
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
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes && i < content.size(); ++i) length |= uint64_t{static_cast<unsigned char>(content[i])} << (8 * i);
  if (content.size() < kLengthBytes || length > kLongestHeader || length > content.size() - kLengthBytes) {
    refuse_header(file, "no safetensors file, or cut short");
  }
  const nlohmann::json header = parse_json(content.substr(kLengthBytes, length), file.string(), "the header of a safetensors file");
  if (!header.is_object()) refuse_header(file, "its header is none of safetensors; expected an object of tensors");
  const uint64_t first = kLengthBytes + length;
  std::map<std::string, StoredTensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name != kMetadata) tensors[name] = stored_tensor(entry, name, first, content.size() - first, file);
  }
  return tensors;
}

}  // namespace firkin
