#include "train/model_weights.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>
#include <utility>

#include "firkin/base/error.h"

namespace firkin {
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
    if (found == weights.end()) throw InputError(fmt::format("{}: no tensor {}, which the model has", file.string(), known.name));
    const at::Tensor stored = known.transposed && !is_ours && found->second.dim() == 2 ? found->second.t() : found->second;
    if (stored.sizes() != item.value().sizes()) {
      throw InputError(fmt::format("{}: {} of [{}]; expected [{}]", file.string(), found->first, fmt::join(stored.sizes(), ", "),
                                   fmt::join(item.value().sizes(), ", ")));
    }
    item.value().copy_(stored);
  }
}

}  // namespace firkin
