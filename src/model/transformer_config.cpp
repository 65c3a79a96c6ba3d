#include "model/transformer_config.h"

#include <fmt/format.h>

#include <cmath>

#include "firkin/base/error.h"

namespace firkin {

// With these limits no product of sizes, and no sum of bytes over a model, leaves int64_t.
constexpr int64_t kLargestSize = int64_t{1} << 20;
constexpr int64_t kMostLayers = 10000;

std::string_view family_name(ModelFamily family) {
  return family == ModelFamily::kCs336 ? "cs336" : "gpt2";
}

ModelFamily family_from_name(std::string_view name, const std::string& where) {
  for (const ModelFamily family : {ModelFamily::kCs336, ModelFamily::kGpt2}) {
    if (name == family_name(family)) return family;
  }
  throw InputError(fmt::format("{}: unknown model family '{}'; expected cs336 or gpt2", where, name));
}

void check_config(const TransformerConfig& config, const std::string& where) {
  for (const ConfigSize& size : kConfigSizes) {
    const int64_t value = config.*size.member;
    const int64_t largest = size.member == &TransformerConfig::num_layers ? kMostLayers : kLargestSize;
    if (value < 1 || value > largest) {
      throw InputError(fmt::format("{}: {} is {}; expected an integer from 1 to {}", where, size.name, value, largest));
    }
  }
  if (config.d_model % config.num_heads != 0) {
    throw InputError(
        fmt::format("{}: d_model is {}; expected a multiple of num_heads, which is {}", where, config.d_model, config.num_heads));
  }
  if (config.family != ModelFamily::kCs336) return;
  const int64_t head_dim = config.d_model / config.num_heads;
  if (head_dim % 2 != 0) {
    throw InputError(fmt::format("{}: d_model / num_heads is {}; expected an even number, since rotary positions turn pairs of dimensions",
                                 where, head_dim));
  }
  if (!std::isfinite(config.rope_theta) || config.rope_theta < 1) {
    throw InputError(fmt::format("{}: rope_theta is {}; expected a number of at least 1, such as 10000", where, config.rope_theta));
  }
}

}  // namespace firkin
