#include "model/named_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {
namespace {

struct Sizes {
  int64_t d_model, d_ff, num_layers, num_heads;
};

// CS336 assignment 2 (2025), section 1.1: all five share a vocabulary of 10,000.
constexpr TransformerConfig cs336(const Sizes& sizes) {
  return {.family = ModelFamily::kCs336,
          .vocab_size = 10000,
          .context_length = 1024,
          .d_model = sizes.d_model,
          .d_ff = sizes.d_ff,
          .num_layers = sizes.num_layers,
          .num_heads = sizes.num_heads};
}

// Radford et al. 2019, table 2; vocabulary, context and heads from the released checkpoints.
constexpr TransformerConfig gpt2(const Sizes& sizes) {
  return {.family = ModelFamily::kGpt2,
          .vocab_size = 50257,
          .context_length = 1024,
          .d_model = sizes.d_model,
          .d_ff = sizes.d_ff,
          .num_layers = sizes.num_layers,
          .num_heads = sizes.num_heads,
          .tied = true};
}

// Bytes as tokens. Small enough for one core, yet with 19 MiB of gradients in 57 tensors, so that the bucket size matters.
constexpr TransformerConfig kDemo = {
    .family = ModelFamily::kCs336, .vocab_size = 256, .context_length = 1024, .d_model = 256, .d_ff = 704, .num_layers = 6, .num_heads = 4};

constexpr std::array kModels = {
    NamedModel{"demo", "bytes as tokens; a step takes a fraction of a second on one core", kDemo},
    NamedModel{"small", "CS336 assignment 2, small", cs336({768, 3072, 12, 12})},
    NamedModel{"medium", "CS336 assignment 2, medium", cs336({1024, 4096, 24, 16})},
    NamedModel{"large", "CS336 assignment 2, large", cs336({1280, 5120, 36, 20})},
    NamedModel{"xl", "CS336 assignment 2, xl", cs336({1600, 6400, 48, 25})},
    NamedModel{"2.7b", "CS336 assignment 2, 2.7B", cs336({2560, 10240, 32, 32})},
    NamedModel{"gpt2", "GPT-2, the smallest of four", gpt2({768, 3072, 12, 12})},
    NamedModel{"gpt2-medium", "GPT-2 medium", gpt2({1024, 4096, 24, 16})},
    NamedModel{"gpt2-large", "GPT-2 large", gpt2({1280, 5120, 36, 20})},
    NamedModel{"gpt2-xl", "GPT-2 XL", gpt2({1600, 6400, 48, 25})},
};

}  // namespace

std::span<const NamedModel> named_models() {
  return kModels;
}

const NamedModel& find_model(std::string_view name) {
  std::vector<std::string_view> names;
  for (const NamedModel& model : kModels) {
    if (model.name == name) return model;
    names.push_back(model.name);
  }
  throw InputError(fmt::format("unknown model '{}'; expected {}, or a .json file", name, fmt::join(names, ", ")));
}

}  // namespace firkin
