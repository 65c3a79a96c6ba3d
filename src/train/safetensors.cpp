#include "train/safetensors.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "train/safetensors_header.h"

namespace firkin {
namespace {

constexpr std::array kTypes = {std::pair{"F32", at::kFloat}, std::pair{"F64", at::kDouble}, std::pair{"BF16", at::kBFloat16},
                               std::pair{"F16", at::kHalf}, std::pair{"I64", at::kLong}};

const char* name_of_type(at::ScalarType type) {
  for (const auto& [name, known] : kTypes) {
    if (known == type) return name;
  }
  throw RuntimeError(fmt::format("safetensors: no name for {}", c10::toString(type)));
}

at::ScalarType type_of_name(const std::string& name) {
  for (const auto& [known, type] : kTypes) {
    if (name == known) return type;
  }
  throw RuntimeError(fmt::format("safetensors: no type for {}", name));
}

}  // namespace

void write_safetensors(const std::filesystem::path& file, const TensorsByName& tensors) {
  std::map<std::string, StoredTensor> places;
  std::vector<at::Tensor> dense;
  for (const auto& [name, tensor] : tensors) {
    dense.push_back(tensor.detach().to(at::kCPU).contiguous());
    places[name] = {.dtype = name_of_type(tensor.scalar_type()), .shape = tensor.sizes().vec(), .bytes = dense.back().nbytes()};
  }
  write_file_atomically(file, [&](const auto& write) {
    write(safetensors_header(places));
    for (const at::Tensor& tensor : dense) write({static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()});
  });
}

TensorsByName read_safetensors(const std::filesystem::path& file) {
  const std::string content = read_file(file);
  TensorsByName tensors;
  for (const auto& [name, place] : parse_safetensors_header(content, file)) {
    at::Tensor tensor = at::empty(place.shape, type_of_name(place.dtype));
    if (place.bytes > 0) std::memcpy(tensor.mutable_data_ptr(), content.data() + place.first, place.bytes);
    tensors[name] = std::move(tensor);
  }
  return tensors;
}

}  // namespace firkin
