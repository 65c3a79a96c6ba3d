#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "firkin/base/error.h"
#include "layers.h"
#include "workload/transformer.h"

#include <torch/nn/modules/container/modulelist.h>

namespace firkin {

namespace {

void check_tokens(const at::Tensor& tokens, const TransformerConfig& config) {
  if (tokens.dim() != 2) throw InputError(fmt::format("tokens of {} dimensions; expected two, [batch, sequence]", tokens.dim()));
  if (tokens.size(1) > config.context_length) {
    throw InputError(
        fmt::format("a sequence of {} tokens; expected at most the model's context_length {}", tokens.size(1), config.context_length));
  }
}

// Float32 at least, also for a model in bf16.
at::TensorOptions angle_options(const at::Tensor& x) {
  return at::TensorOptions().device(x.device()).dtype(c10::promoteTypes(x.scalar_type(), at::kFloat));
}

}  // namespace

struct TransformerLMImpl::Layers {
  std::shared_ptr<EmbeddingLayer> token_embeddings;
  std::shared_ptr<EmbeddingLayer> position_embeddings;  // GPT-2
  std::vector<std::shared_ptr<TransformerBlock>> blocks;
  std::shared_ptr<NormLayer> final_norm;
  std::shared_ptr<LinearLayer> head;  // none when tied
};

TransformerLMImpl::TransformerLMImpl(const TransformerConfig& config, const at::TensorOptions& options)
    : config_(config), layers_(std::make_unique<Layers>()) {
  check_config(config, "model");
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  const auto embedding = [&](const char* name, int64_t count) {
    return register_module(name, std::make_shared<EmbeddingLayer>(count, config.d_model, kWeightStdev, options));
  };
  layers_->token_embeddings = embedding("token_embeddings", config.vocab_size);
  if (gpt2) layers_->position_embeddings = embedding("position_embeddings", config.context_length);
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    layers_->blocks.push_back(make_block(config, options));
    blocks->push_back(layers_->blocks.back());
  }
  register_module("blocks", blocks);
  const NormKind norm = gpt2 ? NormKind::kLayer : NormKind::kRms;
  layers_->final_norm = register_module("ln_final", std::make_shared<NormLayer>(norm, config.d_model, options));
  if (config.tied) return;
  layers_->head = register_module(
      "lm_head", std::make_shared<LinearLayer>(config.d_model, config.vocab_size, /*with_bias=*/false, kWeightStdev, options));
}

TransformerLMImpl::~TransformerLMImpl() = default;

at::Tensor TransformerLMImpl::forward(const at::Tensor& tokens) {
  check_tokens(tokens, config_);
  const int64_t sequence = tokens.size(1);
  const auto done = [this](const char* layer) {
    if (observer_) observer_(layer);
  };
  done("");
  at::Tensor x = layers_->token_embeddings->forward(tokens);
  done("token_embeddings");
  // The angles are computed anew for each pass: that costs far less than one layer, and a kept copy would have to
  // follow the model to other devices and types, and would be spoilt for training by a first pass under InferenceMode.
  RotaryAngles angles;
  if (layers_->position_embeddings != nullptr) {
    x = x + layers_->position_embeddings->forward(at::arange(sequence, tokens.options()));
    done("position_embeddings");
  } else {
    angles = rotary_angles(sequence, config_.d_model / config_.num_heads, config_.rope_theta, angle_options(x));
  }
  for (size_t i = 0; i < layers_->blocks.size(); ++i) {
    x = layers_->blocks[i]->forward(x, angles);
    if (observer_) observer_(fmt::format("blocks.{}", i));
  }
  x = layers_->final_norm->forward(x);
  done("ln_final");
  x = layers_->head != nullptr ? layers_->head->forward(x) : at::linear(x, layers_->token_embeddings->weight());
  done("lm_head");
  return x;
}

at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.flatten(0, 1);
  const bool half = rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf;
  return at::cross_entropy_loss(half ? rows.to(at::kFloat) : rows, targets.flatten());
}

}  // namespace firkin
