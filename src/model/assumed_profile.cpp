#include "model/assumed_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// Peaks for dense bf16 from NVIDIA's data sheets. llm-foundry's tables (github.com/mosaicml/llm-foundry, commit
// 061f2c7c, scripts/train/benchmarking) show a utilization of 43 to 64 % on A100s and 35 to 46 % on H100s; a GH200 and
// an H200 have an H100's processor.
constexpr std::array kAccelerators = {
    Accelerator{"a100", 312e12, 0.5}, Accelerator{"a40", 149.7e12, 0.5}, Accelerator{"gh200", 989e12, 0.4},
    Accelerator{"h100", 989e12, 0.4}, Accelerator{"h200", 989e12, 0.4},
};

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

std::span<const Accelerator> accelerators() {
  return kAccelerators;
}

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
