#include "model/transformer_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <ranges>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"

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
  TransformerConfig config = cs336(sizes);
  config.family = ModelFamily::kGpt2;
  config.vocab_size = 50257;
  config.tied = true;
  return config;
}

// Bytes as tokens. Small enough for one core, yet with 19 MiB of gradients in 57 tensors, so that the bucket size
// matters.
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

using Json = nlohmann::json;

constexpr const char* kExpected = "an object such as {\"base\": \"demo\", \"num_layers\": 4}";

}  // namespace

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

std::vector<TensorSpec> tensor_specs(const TransformerConfig& config) {
  check_config(config, "model");
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  const int64_t d = config.d_model;
  std::vector<TensorSpec> specs;
  const auto matrix = [&](const std::string& name, int64_t out, int64_t in, bool with_bias = false) {
    specs.push_back({name + ".weight", out * in});
    if (with_bias) specs.push_back({name + ".bias", out});
  };
  const auto norm = [&](const std::string& name) { matrix(name, d, 1, gpt2); };
  matrix("token_embeddings", config.vocab_size, d);
  if (gpt2) matrix("position_embeddings", config.context_length, d);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    if (gpt2) {
      norm(block + "ln_1");
      matrix(block + "attn_c_attn", 3 * d, d, true);
      matrix(block + "attn_c_proj", d, d, true);
      norm(block + "ln_2");
      matrix(block + "mlp_c_fc", config.d_ff, d, true);
      matrix(block + "mlp_c_proj", d, config.d_ff, true);
      continue;
    }
    norm(block + "ln1");
    for (const char* name : {"q", "k", "v", "o"}) matrix(block + name, d, d);
    norm(block + "ln2");
    matrix(block + "w1", config.d_ff, d);
    matrix(block + "w2", d, config.d_ff);
    matrix(block + "w3", config.d_ff, d);
  }
  norm("ln_final");
  if (!config.tied) matrix("lm_head", config.vocab_size, d);
  return specs;
}

std::span<const NamedModel> named_models() {
  return kModels;
}

const NamedModel& find_model(std::string_view name) {
  const auto found = std::ranges::find(kModels, name, &NamedModel::name);
  if (found != kModels.end()) return *found;
  throw InputError(fmt::format("unknown model '{}'; expected {}, or a .json file", name,
                               fmt::join(kModels | std::views::transform(&NamedModel::name), ", ")));
}

TransformerConfig parse_model_json(std::string_view text, const std::string& path) {
  const Json object = parse_json(text, path, kExpected);
  if (!object.is_object()) throw InputError(fmt::format("{}: a JSON {}; expected {}", path, object.type_name(), kExpected));
  const auto require = [&](bool is_right, const std::string& key, const char* expected) {
    if (!is_right) throw InputError(fmt::format("{}: {} is {}; expected {}", path, key, object[key].dump(), expected));
  };
  TransformerConfig config;
  const bool has_base = object.contains("base");
  if (has_base) {
    require(object["base"].is_string(), "base", "a string");
    try {
      config = find_model(object["base"].get<std::string>()).config;
    } catch (const InputError& error) {
      throw InputError(fmt::format("{}: base: {}", path, error.what()));
    }
  }
  for (const auto& [key, value] : object.items()) {
    if (const auto size = std::ranges::find(kConfigSizes, key, &ConfigSize::name); size != kConfigSizes.end()) {
      const bool wraps_around = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX;
      require(value.is_number_integer() && !wraps_around, key, "an integer");
      config.*size->member = value.get<int64_t>();
    } else if (key == "family") {
      require(value.is_string(), key, "a string");
      config.family = family_from_name(value.get<std::string>(), path);
    } else if (key == "tied") {
      require(value.is_boolean(), key, "true or false");
      config.tied = value.get<bool>();
    } else if (key == "rope_theta") {
      require(value.is_number(), key, "a number");
      config.rope_theta = value.get<double>();
    } else if (key != "base") {
      throw InputError(
          fmt::format("{}: unknown key '{}'; expected base, family, vocab_size, context_length, d_model, d_ff, num_layers, "
                      "num_heads, tied or rope_theta",
                      path, key));
    }
  }
  for (const ConfigSize& size : kConfigSizes) {
    if (has_base || object.contains(size.name)) continue;
    throw InputError(fmt::format("{}: no {}; expected it, or a base to take it from", path, size.name));
  }
  check_config(config, path);
  return config;
}

TransformerConfig model_from_json_file(const std::filesystem::path& path) {
  return parse_model_json(read_text_file(path, kLongestJsonLine, kExpected), path.string());
}

TransformerConfig resolve_model(const std::string& name_or_file) {
  if (name_or_file.ends_with(".json")) return model_from_json_file(name_or_file);
  return find_model(name_or_file).config;
}

namespace {

// Elements that one block keeps per token. CS336: two norms' inputs, scaled and weighted values; q, k, v; the
// attention's result in two layouts; the four of SwiGLU. GPT-2: two norms' inputs and results; q, k, v; the attention's
// result in two layouts; GELU's input and result.
int64_t kept_by_block(const TransformerConfig& config) {
  return config.family == ModelFamily::kCs336 ? 11 * config.d_model + 4 * config.d_ff : 9 * config.d_model + 2 * config.d_ff;
}

constexpr int64_t kLogitCopies = 3;  // logits, their log-softmax, their gradient; in float32 at least
constexpr int64_t kLogitBytes = 4;

}  // namespace

MemoryEstimate estimate_training_memory(const TransformerConfig& config, int64_t batch, int64_t sequence, int64_t element_bytes) {
  int64_t parameters = 0;
  for (const TensorSpec& tensor : tensor_specs(config)) parameters += tensor.numel;
  const int64_t per_token = config.num_layers * kept_by_block(config) * element_bytes + kLogitCopies * config.vocab_size * kLogitBytes;
  return {.parameters = parameters * element_bytes, .gradients = parameters * element_bytes, .activations = batch * sequence * per_token};
}

int64_t process_bytes(const MemoryEstimate& estimate) {
  constexpr int64_t kLibTorchBytes = 200 * kMiB;
  return estimate.total() + estimate.total() / 5 * 2 + kLibTorchBytes;
}

void check_training_memory(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes) {
  const int64_t ranks = std::max(1, local_ranks);
  const int64_t rank_bytes = process_bytes(estimate);
  if (rank_bytes <= available_bytes / ranks) return;
  throw InputError(fmt::format(
      "training takes about {} of memory per rank (parameters {}, gradients {}, activations {}), {} for {} here; {} are available; "
      "expected a smaller model, batch or sequence, or fewer ranks on this machine",
      format_bytes(rank_bytes), format_bytes(estimate.parameters), format_bytes(estimate.gradients), format_bytes(estimate.activations),
      format_bytes(rank_bytes * ranks), ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks), format_bytes(available_bytes)));
}

namespace {

// An operation of forward: what it computes for one token, and the parameters that it uses.
struct Operation {
  std::string name;
  double flops_per_token = 0;
  std::vector<TensorSpec> tensors = {};
};

bool multiplies(std::string_view layer) {
  return !layer.ends_with("embeddings") && !layer.substr(layer.rfind('.') + 1).starts_with("ln");
}

bool follows_attention(std::string_view layer) {
  return layer.ends_with(".attn_c_proj") || layer.ends_with(".o");
}

// The operations in the order of forward.
std::vector<Operation> operations_of(const TransformerConfig& config, int64_t sequence) {
  const auto width = static_cast<double>(config.d_model);
  std::vector<Operation> operations;
  for (const TensorSpec& tensor : tensor_specs(config)) {
    const std::string layer = tensor.name.substr(0, tensor.name.rfind('.'));
    if (operations.empty() || operations.back().name != layer) {
      if (follows_attention(layer)) operations.push_back({"attention", 4 * width * static_cast<double>(sequence)});
      operations.push_back({layer});
    }
    Operation& operation = operations.back();
    operation.tensors.push_back(tensor);
    if (tensor.name.ends_with(".weight") && multiplies(layer)) operation.flops_per_token += 2 * static_cast<double>(tensor.numel);
  }
  if (config.tied) operations.push_back({"lm_head", 2 * width * static_cast<double>(config.vocab_size)});
  return operations;
}

}  // namespace

const Accelerator& find_accelerator(std::string_view name) {
  const auto found = std::ranges::find(kAccelerators, name, &Accelerator::name);
  if (found != kAccelerators.end()) return *found;
  throw InputError(fmt::format("unknown GPU '{}'; expected one of {}", name,
                               fmt::join(kAccelerators | std::views::transform(&Accelerator::name), ", ")));
}

TensorProfile assumed_profile(const TransformerConfig& config, const LocalBatch& local, double flops_per_s) {
  constexpr double kBackwardOverForward = 2;  // backward computes the gradients of inputs and of weights
  const std::vector<Operation> operations = operations_of(config, local.sequence);
  const double s_per_flop = static_cast<double>(local.batch) * static_cast<double>(local.sequence) / flops_per_s;
  TensorProfile profile;
  for (const Operation& operation : operations) {
    profile.needed_s.insert(profile.needed_s.end(), operation.tensors.size(), profile.forward_s);
    profile.forward_s += operation.flops_per_token * s_per_flop;
  }
  std::ranges::reverse(profile.needed_s);
  for (const Operation& operation : std::views::reverse(operations)) {
    profile.backward_s += kBackwardOverForward * operation.flops_per_token * s_per_flop;
    for (const TensorSpec& tensor : std::views::reverse(operation.tensors)) {
      profile.names.push_back(tensor.name);
      profile.bytes.push_back(tensor.numel * kFloatBytes);
      profile.ready_s.push_back(profile.backward_s);
    }
  }
  return profile;
}

}  // namespace firkin
