#include "train/safetensors.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"

namespace firkin {
namespace {

constexpr size_t kLengthBytes = 8;
constexpr size_t kLongestHeader = 100'000'000;  // as the format's own reader has it
constexpr const char* kMetadata = "__metadata__";

constexpr std::array kTypes = {std::pair{"F32", at::kFloat}, std::pair{"F64", at::kDouble}, std::pair{"BF16", at::kBFloat16},
                               std::pair{"F16", at::kHalf}, std::pair{"I64", at::kLong}};

const char* name_of_type(at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  throw RuntimeError(fmt::format("safetensors: no name for {}", c10::toString(type)));
}

[[noreturn]] void refuse_weights(const std::filesystem::path& file, const std::string& why) {
  throw InputError(fmt::format("{}: {}", file.string(), why));
}

at::Tensor tensor_at(const std::filesystem::path& file, const std::string& name, const nlohmann::json& entry, std::string_view data) {
  const auto type_name = entry.at("dtype").get<std::string>();
  const auto shape = entry.at("shape").get<std::vector<int64_t>>();
  const auto offsets = entry.at("data_offsets").get<std::array<uint64_t, 2>>();
  for (const auto& [known, type] : kTypes) {
    if (type_name != known) continue;
    uint64_t bytes = c10::elementSize(type);
    for (const int64_t size : shape) {
      if (size < 0 || (size > 0 && bytes > data.size() / static_cast<uint64_t>(size)))
        refuse_weights(file, name + ": more bytes than there are");
      bytes *= static_cast<uint64_t>(size);
    }
    if (offsets[0] > offsets[1] || offsets[1] > data.size() || offsets[1] - offsets[0] != bytes) {
      refuse_weights(file, fmt::format("{}: bytes {} to {} of {}; expected {} of them", name, offsets[0], offsets[1], data.size(), bytes));
    }
    at::Tensor tensor = at::empty(shape, type);
    if (bytes > 0) std::memcpy(tensor.mutable_data_ptr(), data.data() + offsets[0], bytes);
    return tensor;
  }
  refuse_weights(file, fmt::format("{}: dtype {}; expected F32, F64, BF16, F16 or I64", name, type_name));
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, const TensorsByName& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::vector<at::Tensor> dense;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().to(at::kCPU).contiguous());
    const uint64_t end = offset + dense.back().nbytes();
    header[name] = {{"dtype", name_of_type(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');  // tensors begin at a multiple of 8
  std::string length(kLengthBytes, '\0');
  for (size_t i = 0; i < kLengthBytes; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  write_file_atomically(file, [&](const auto& write) {
    write(length);
    write(text);
    for (const at::Tensor& tensor : dense) write({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  });
}

TensorsByName read_safetensors(const std::filesystem::path& file) {
  const std::string content = read_file(file);
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes && i < content.size(); ++i) length |= uint64_t{static_cast<unsigned char>(content[i])} << (8 * i);
  if (content.size() < kLengthBytes || length > kLongestHeader || length > content.size() - kLengthBytes) {
    refuse_weights(file, "no safetensors file, or cut short");
  }
  const std::string header_text = content.substr(kLengthBytes, length);
  const nlohmann::json header = parse_json(header_text, file.string(), "the header of a safetensors file");
  const std::string_view data = std::string_view(content).substr(kLengthBytes + length);
  TensorsByName tensors;
  try {
    for (const auto& [name, entry] : header.items()) {
      if (name != kMetadata) tensors[name] = tensor_at(file, name, entry, data);
    }
  } catch (const nlohmann::json::exception& error) {
    refuse_weights(file, fmt::format("its header is none of safetensors: {}", error.what()));
  }
  return tensors;
}

}  // namespace firkin
