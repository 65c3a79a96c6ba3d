#include "model/memory_estimate.h"

#include <fmt/format.h>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

// What one block keeps per token, in multiples of its widths.
struct KeptPerToken {
  int64_t d_model;
  int64_t d_ff;
};

// CS336: two norms' inputs, scaled and weighted values; q, k, v; the attention's result in two layouts; the four of SwiGLU.
// GPT-2: two norms' inputs and results; q, k, v; the attention's result in two layouts; GELU's input and result.
KeptPerToken kept_by_block(ModelFamily family) {
  return family == ModelFamily::kCs336 ? KeptPerToken{.d_model = 11, .d_ff = 4} : KeptPerToken{.d_model = 9, .d_ff = 2};
}

constexpr int64_t kLogitCopies = 3;  // logits, their log-softmax, their gradient; in float32 at least
constexpr int64_t kLogitBytes = 4;

}  // namespace

MemoryEstimate estimate_training_memory(const TransformerConfig& config, int64_t batch, int64_t sequence, int64_t element_bytes) {
  int64_t parameters = 0;
  for (const TensorSpec& tensor : tensor_specs(config)) parameters += tensor.numel;
  const KeptPerToken kept = kept_by_block(config.family);
  const int64_t per_token = config.num_layers * (kept.d_model * config.d_model + kept.d_ff * config.d_ff) * element_bytes +
                            kLogitCopies * config.vocab_size * kLogitBytes;
  return {.parameters = parameters * element_bytes, .gradients = parameters * element_bytes, .activations = batch * sequence * per_token};
}

int64_t process_bytes(const MemoryEstimate& estimate) {
  constexpr int64_t kLibTorchBytes = 200 * kMiB;
  return estimate.total() + estimate.total() / 5 * 2 + kLibTorchBytes;
}

std::string parts_in_text(const MemoryEstimate& estimate) {
  return fmt::format("parameters {}, gradients {}, activations {}", format_bytes(estimate.parameters), format_bytes(estimate.gradients),
                     format_bytes(estimate.activations));
}

void check_training_memory(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes) {
  const int64_t ranks = std::max(1, local_ranks);
  const int64_t rank_bytes = process_bytes(estimate);
  if (rank_bytes <= available_bytes / ranks) return;
  throw InputError(fmt::format(
      "training takes about {} of memory per rank ({}), {} for {} here; {} are available; expected a smaller model, batch or sequence, or "
      "fewer ranks on this machine",
      format_bytes(rank_bytes), parts_in_text(estimate), format_bytes(rank_bytes * ranks),
      ranks == 1 ? "one rank" : fmt::format("{} ranks", ranks), format_bytes(available_bytes)));
}

}  // namespace firkin
