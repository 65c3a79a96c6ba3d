// Transformer language models, built from a TransformerConfig, and their layers, on any device. LibTorch's own modules
// cannot be made on the meta device, and draw their random numbers before a device can be chosen.
//
//   torch::manual_seed(0);
//   TransformerLM model(find_model("demo").config);
//   at::Tensor loss = language_model_loss(model->forward(tokens), targets);
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/transformer_config.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

namespace firkin {

class EmbeddingLayer;
class LinearLayer;
class NormLayer;
class TransformerBlock;

// Parameters are registered in the order of the forward pass: token_embeddings (GPT-2: and position_embeddings), the
// blocks' (CS336: ln1, q, k, v, o, ln2, w1, w2, w3; GPT-2: ln_1, c_attn, c_proj, ln_2, c_fc, c_proj of the MLP),
// ln_final, lm_head.
//
// Weights start normal with standard deviation 0.02, those that write to the residual stream with 0.02 / sqrt(2 *
// layers) (Radford et al. 2019, section 2.3); gains start at one, biases at zero. The numbers come from LibTorch's
// default generator: seed it with torch::manual_seed.
class TransformerLMImpl : public torch::nn::Module {
 public:
  // options: dtype and device of the parameters. On c10::kMeta no memory is allocated. Throws InputError as
  // check_config does.
  explicit TransformerLMImpl(const TransformerConfig& config, const at::TensorOptions& options = {});

  // tokens: int64 [batch, sequence], each below vocab_size. Returns logits [batch, sequence, vocab_size]. Those at
  // position t depend on tokens 0..t only. Throws InputError unless tokens has two dimensions and the sequence is at
  // most context_length; LibTorch throws c10::Error for tokens of another type and, on the CPU, outside the vocabulary.
  at::Tensor forward(const at::Tensor& tokens);

  // For profiling: forward() calls `observer` on its own thread, with "" before the first layer, and after each layer
  // with the prefix of its parameters' names: "token_embeddings", "position_embeddings", "blocks.0", ..., "ln_final",
  // "lm_head" (even if the head is tied). An empty function ends this.
  void observe_forward(std::function<void(const std::string& layer)> observer) { observer_ = std::move(observer); }

 private:
  TransformerConfig config_;
  std::shared_ptr<EmbeddingLayer> token_embeddings_;
  std::shared_ptr<EmbeddingLayer> position_embeddings_;  // GPT-2
  std::vector<std::shared_ptr<TransformerBlock>> blocks_;
  std::shared_ptr<NormLayer> final_norm_;
  std::shared_ptr<LinearLayer> head_;  // none when tied
  std::function<void(const std::string& layer)> observer_;
};
TORCH_MODULE(TransformerLM);

// Mean cross-entropy in nats, a scalar in float32 (or float64). logits [batch, sequence, vocab], targets int64 [batch,
// sequence].
at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace firkin
