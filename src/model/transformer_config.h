// The shape of a transformer language model: plain data.
//
//   TransformerConfig config = find_model("demo").config;
//   config.num_layers = 2;
//   check_config(config, "--num-layers");
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace firkin
