#include "gpt2_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr std::array kSizes = {
    Gpt2Size{"gpt2", 768, 12},
    Gpt2Size{"gpt2-medium", 1024, 24},
    Gpt2Size{"gpt2-large", 1280, 36},
    Gpt2Size{"gpt2-xl", 1600, 48},
};

}  // namespace

const Gpt2Size& find_gpt2(const std::string& name) {
  std::vector<std::string> names;
  for (const Gpt2Size& size : kSizes) {
    if (name == size.name) return size;
    names.emplace_back(size.name);
  }
  throw InputError(fmt::format("unknown GPT-2 model '{}'; expected one of {}", name, fmt::join(names, ", ")));
}

std::vector<ParameterCount> gpt2_block(const Gpt2Size& size, int64_t index) {
  const int64_t d = size.width;
  std::vector<ParameterCount> tensors;
  const auto add = [&](const char* layer, int64_t weights, int64_t biases) {
    tensors.push_back({fmt::format("blocks.{}.{}.weight", index, layer), weights});
    tensors.push_back({fmt::format("blocks.{}.{}.bias", index, layer), biases});
  };
  add("ln_1", d, d);
  add("attn_c_attn", 3 * d * d, 3 * d);
  add("attn_c_proj", d * d, d);
  add("ln_2", d, d);
  add("mlp_c_fc", 4 * d * d, 4 * d);
  add("mlp_c_proj", 4 * d * d, d);
  return tensors;
}

std::vector<ParameterCount> gpt2_final_norm(const Gpt2Size& size) {
  return {{"ln_final.weight", size.width}, {"ln_final.bias", size.width}};
}

ParameterCount gpt2_token_embedding(const Gpt2Size& size) {
  return {"token_embeddings.weight", Gpt2Size::kVocabulary * size.width};
}

ParameterCount gpt2_position_embedding(const Gpt2Size& size) {
  return {"position_embeddings.weight", Gpt2Size::kContext * size.width};
}

int64_t total_parameters(const std::vector<ParameterCount>& tensors) {
  int64_t total = 0;
  for (const ParameterCount& tensor : tensors) total += tensor.parameters;
  return total;
}

}  // namespace firkin
