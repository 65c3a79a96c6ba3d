// The shape of a transformer language model, its tensors, and an estimate of its memory in training.
//
//   TransformerConfig config = find_model("demo").config;
//   config.num_layers = 2;
//   check_config(config, "--num-layers");
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/plan/measurements.h"

namespace firkin {

enum class ModelFamily {
  // RMSNorm, rotary positions (RoPE), SwiGLU with three matrices, no biases: Stanford CS336's model, as in LLaMA
  kCs336,
  kGpt2,  // LayerNorm, learned positions, GELU (tanh form), biases, fused query-key-value: Radford et al. 2019
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

// The inverse of family_name(). Throws InputError, which begins with `where` and lists the names.
ModelFamily family_from_name(std::string_view name, const std::string& where);

// Throws InputError unless every size is from 1 to 2^20, num_layers is at most 10,000, d_model is a multiple of
// num_heads, and, with rotary positions, the head dimension is even and rope_theta is finite and at least 1. `where`
// begins the message: a file or a flag.
void check_config(const TransformerConfig& config, const std::string& where);

struct TensorSpec {
  std::string name;
  int64_t numel = 0;
};

// The parameters of a model (workload/transformer.h), in registration order, which is that of the forward pass. A tied
// weight is listed once. Throws InputError as check_config does.
std::vector<TensorSpec> tensor_specs(const TransformerConfig& config);

// ---- The models that Firkin knows by name: `demo`, Stanford CS336 assignment 2's five sizes, and GPT-2's four.

struct NamedModel {
  std::string_view name;
  std::string_view description;
  TransformerConfig config;
};

// Every named model, smallest first within each family.
std::span<const NamedModel> named_models();

// Throws InputError, which lists the names.
const NamedModel& find_model(std::string_view name);

// ---- Model configurations from JSON files.
//
//   {"base": "xl", "num_layers": 4}                       xl, but with four blocks
//   {"family": "gpt2", "vocab_size": 256, "context_length": 128, "d_model": 64, "d_ff": 256, "num_layers": 2,
//    "num_heads": 4, "tied": true}

// Reads one JSON object. Keys: `base` (a named model to start from), `family` (cs336 or gpt2), the sizes in kConfigSizes,
// `tied`, `rope_theta`. Without `base`, every size is required and the rest defaults as in TransformerConfig. `file` is
// the name used in errors. Throws InputError for unreadable files, malformed JSON, unknown or repeated keys, wrong types,
// and sizes that check_config rejects.
TransformerConfig parse_model_json(std::string_view text, const std::string& file);
TransformerConfig model_from_json_file(const std::filesystem::path& path);

// The model that a --model flag names: a file if the name ends in .json, a named model otherwise. Throws InputError as
// model_from_json_file() and find_model() do.
TransformerConfig resolve_model(const std::string& name_or_file);

// Bytes that tensors hold on one rank, under plain SGD, which has no state.
struct MemoryEstimate {
  int64_t parameters = 0;
  int64_t gradients = 0;    // one copy
  int64_t activations = 0;  // the most that is kept for backward, including the loss

  // The peak under any strategy. In the first step, before the gradients' order is known, and when they are sent after
  // backward (naive, flat), autograd makes a second copy beside the buckets while the activations are freed. The copy
  // that `firkin bench step` sends without a backward pass needs no more than that.
  int64_t total() const { return parameters + gradients + std::max(activations, gradients); }
};

// batch: sequences per rank; element_bytes: 4 for float32, 2 for bf16. Counts what each layer of workload/ keeps for
// backward, with attention fused (nothing of size sequence^2); within 15 % of what is measured
// (tests/bench/memory_test.cpp). Allocates nothing. Throws InputError as check_config does.
MemoryEstimate estimate_training_memory(const TransformerConfig& config, int64_t batch, int64_t sequence, int64_t element_bytes);

// Bytes of a rank's whole process: the tensors, two fifths more for freed memory that malloc keeps, and 200 MiB for
// LibTorch itself. Measured (bench step, flat, one rank, 4 layers of `small`, 608 MiB of tensors): 1052 MiB resident;
// 791 MiB where malloc gives blocks back.
int64_t process_bytes(const MemoryEstimate& estimate);

// Throws InputError, one line that says what is needed, what there is, and what to do, unless `local_ranks` ranks that
// train fit into `available_bytes` together: the kernel kills a process that asks for more than there is, and does not
// say why.
void check_training_memory(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes);

// A GPU's dense bf16 peak, and the share that training is assumed to reach, unless the user gives another.
struct Accelerator {
  std::string_view name;
  double peak_flops_per_s;
  double utilization;  // the assumption of studies/worth, which is within published values

  double reached_flops_per_s() const { return peak_flops_per_s * utilization; }
};

// Peaks are from NVIDIA's data sheets. llm-foundry's tables (github.com/mosaicml/llm-foundry, commit 061f2c7c,
// scripts/train/benchmarking) show a utilization of 36 to 64 % on A100s and 26 to 46 % on H100s; a GH200 and an H200
// have an H100's processor.
inline constexpr std::array kAccelerators = {
    Accelerator{"a100", 312e12, 0.5}, Accelerator{"a40", 149.7e12, 0.5}, Accelerator{"gh200", 989e12, 0.4},
    Accelerator{"h100", 989e12, 0.4}, Accelerator{"h200", 989e12, 0.4},
};

const Accelerator& find_accelerator(std::string_view name);  // throws InputError, which lists the names

struct LocalBatch {
  int64_t batch = 0;     // sequences per rank
  int64_t sequence = 0;  // tokens per sequence
};

// The profile that a model would have at `flops_per_s`. Counts two operations per weight and token in forward, and for
// attention four times width x sequence per token and block; backward takes twice as many. Embeddings, norms, biases and element-wise
// operations take no time. Gradients are float32, and ready in the reverse of registration order; a tied embedding's is ready when backward
// ends. The profile has the times of forward (needed_s), but not of the optimiser. Throws InputError as check_config does.
TensorProfile assumed_profile(const TransformerConfig& config, const LocalBatch& local, double flops_per_s);

}  // namespace firkin
