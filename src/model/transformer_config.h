// The shape of a transformer language model: plain data.
//
//   TransformerConfig config = find_model("demo").config;
//   config.num_layers = 2;
//   check_config(config, "--num-layers");
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace firkin {

enum class ModelFamily {
  kCs336,  // RMSNorm, rotary positions (RoPE), SwiGLU with three matrices, no biases: Stanford CS336's model, as in LLaMA
  kGpt2,   // LayerNorm, learned positions, GELU (tanh form), biases, fused query-key-value: Radford et al. 2019
};

struct TransformerConfig {
  ModelFamily family = ModelFamily::kCs336;
  int64_t vocab_size = 0;
  int64_t context_length = 0;   // longest sequence; GPT-2 has one learned vector per position, CS336 has none
  int64_t d_model = 0;          // width of the residual stream
  int64_t d_ff = 0;             // inner width of the feed-forward layer
  int64_t num_layers = 0;       // blocks
  int64_t num_heads = 0;        // attention heads; each has d_model / num_heads dimensions
  bool tied = false;            // the output head is the token embedding itself: one tensor
  double rope_theta = 10000.0;  // base of the rotary angles; GPT-2 ignores it

  bool operator==(const TransformerConfig&) const = default;
};

// The sizes of a configuration by name, for flags and files.
struct ConfigSize {
  std::string_view name;
  int64_t TransformerConfig::*member;
};

inline constexpr std::array kConfigSizes = {
    ConfigSize{"vocab_size", &TransformerConfig::vocab_size}, ConfigSize{"context_length", &TransformerConfig::context_length},
    ConfigSize{"d_model", &TransformerConfig::d_model},       ConfigSize{"d_ff", &TransformerConfig::d_ff},
    ConfigSize{"num_layers", &TransformerConfig::num_layers}, ConfigSize{"num_heads", &TransformerConfig::num_heads},
};

// "cs336", "gpt2".
std::string_view family_name(ModelFamily family);

// The inverse. Throws InputError, which begins with `where` and lists the names.
ModelFamily family_from_name(std::string_view name, const std::string& where);

// Throws InputError unless every size is from 1 to 2^20, num_layers is at most 10,000, d_model is a multiple of num_heads, and, with
// rotary positions, the head dimension is even and rope_theta is finite and at least 1. `where` begins the message: a file or a flag.
void check_config(const TransformerConfig& config, const std::string& where);

// One parameter of a model.
struct TensorSpec {
  std::string name;
  int64_t numel = 0;
};

// The parameters of a model (workload/transformer.h), in registration order, which is that of the forward pass. A tied weight is listed
// once. Throws InputError as check_config does.
std::vector<TensorSpec> tensor_specs(const TransformerConfig& config);

// The models that Firkin knows by name: `demo`, Stanford CS336 assignment 2's five sizes, and GPT-2's four.

struct NamedModel {
  std::string_view name;
  std::string_view description;
  TransformerConfig config;
};

// Every named model, smallest first within each family.
std::span<const NamedModel> named_models();

// Throws InputError, which lists the names.
const NamedModel& find_model(std::string_view name);

// Model configurations from JSON files.
//
//   {"base": "xl", "num_layers": 4}                       xl, but with four blocks
//   {"family": "gpt2", "vocab_size": 256, "context_length": 128, "d_model": 64, "d_ff": 256, "num_layers": 2, "num_heads": 4, "tied": true}

// One JSON object. Keys: `base` (a named model to start from), `family` (cs336 or gpt2), the sizes in kConfigSizes, `tied`,
// `rope_theta`. Without `base`, every size is required and the rest defaults as in TransformerConfig.
// Throws InputError with file and line for unreadable files, malformed JSON, unknown or repeated keys, wrong types, and sizes that
// check_config rejects.
TransformerConfig parse_model_json(std::string_view text, const std::string& file);  // `file`: the name that errors carry
TransformerConfig model_from_json_file(const std::filesystem::path& path);

// What a --model flag means: a file if it ends in .json, a named model otherwise. Throws InputError as those two do.
TransformerConfig resolve_model(const std::string& name_or_file);

}  // namespace firkin
