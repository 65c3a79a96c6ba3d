#include "train/weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "train/formats.h"

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

namespace {

struct KnownName {
  std::string name;
  bool transposed = false;  // Conv1D's [in, out]
};

KnownName gpt2_name(const std::string& ours) {
  using Part = std::pair<std::string_view, std::string_view>;
  static constexpr std::array kParts = {Part{"token_embeddings.", "wte."}, Part{"position_embeddings.", "wpe."}, Part{"blocks.", "h."},
                                        Part{"ln_final.", "ln_f."},        Part{"attn_c_", "attn.c_"},           Part{"mlp_c_", "mlp.c_"}};
  KnownName known{.name = ours};
  for (const auto& [from, to] : kParts) {
    if (const size_t at = known.name.find(from); at != std::string::npos) known.name.replace(at, from.size(), to);
  }
  known.transposed = known.name.find(".c_") != std::string::npos && known.name.ends_with(".weight");
  return known;
}

KnownName known_name(const std::string& ours, const TransformerConfig& config) {
  return config.family == ModelFamily::kGpt2 ? gpt2_name(ours) : KnownName{.name = ours};
}

}  // namespace

TensorsByName exported_weights(const TransformerLM& model, const TransformerConfig& config) {
  TensorsByName weights;
  for (const auto& item : model->named_parameters()) {
    const KnownName known = known_name(item.key(), config);
    weights[known.name] = known.transposed ? item.value().detach().t() : item.value().detach();
  }
  return weights;
}

void import_weights(const TensorsByName& weights, const TransformerConfig& config, const std::filesystem::path& file,
                    TransformerLM& model) {
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    const KnownName known = known_name(item.key(), config);
    auto found = weights.find(known.name);
    if (found == weights.end()) found = weights.find("transformer." + known.name);
    const bool is_ours = found == weights.end();
    if (is_ours) found = weights.find(item.key());
    if (found == weights.end()) throw InputError(fmt::format("{}: lacks the model's tensor {}", file.string(), known.name));
    const at::Tensor stored = known.transposed && !is_ours && found->second.dim() == 2 ? found->second.t() : found->second;
    if (stored.sizes() != item.value().sizes()) {
      throw InputError(fmt::format("{}: {} of [{}]; expected [{}]", file.string(), found->first, fmt::join(stored.sizes(), ", "),
                                   fmt::join(item.value().sizes(), ", ")));
    }
    item.value().copy_(stored);
  }
}

}  // namespace firkin
