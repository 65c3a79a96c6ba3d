#include "workload/transformer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <cmath>

#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"

#include <torch/nn/modules/container/modulelist.h>

namespace firkin {
namespace {

constexpr double kNormEpsilon = 1e-5;
constexpr double kWeightStdev = 0.02;  // of a fresh weight

at::Tensor normal_parameter(at::IntArrayRef shape, double stdev, const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  at::Tensor parameter = at::empty(shape, options);
  if (!parameter.is_meta()) parameter.normal_(0, stdev);
  return parameter;
}

}  // namespace

// y = x W^T + b. weight [out, in], bias [out].
class LinearLayer : public torch::nn::Module {
 public:
  LinearLayer(int64_t in, int64_t out, bool with_bias, double stdev, const at::TensorOptions& options)
      : weight_(register_parameter("weight", normal_parameter({out, in}, stdev, options))) {
    if (with_bias) bias_ = register_parameter("bias", at::zeros({out}, options));
  }

  at::Tensor forward(const at::Tensor& x) const {
    await_parameters(*this);
    return at::linear(x, weight_, bias_);
  }

 private:
  at::Tensor weight_, bias_;
};

// One learned vector per index. weight [count, width].
class EmbeddingLayer : public torch::nn::Module {
 public:
  EmbeddingLayer(int64_t count, int64_t width, double stdev, const at::TensorOptions& options)
      : weight_(register_parameter("weight", normal_parameter({count, width}, stdev, options))) {}

  at::Tensor forward(const at::Tensor& indices) const {
    await_parameters(*this);
    return at::embedding(weight_, indices);
  }

  const at::Tensor& weight() const { return weight_; }

 private:
  at::Tensor weight_;
};

enum class NormKind {
  kRms,    // x / rms(x) * weight (Zhang and Sennrich 2019)
  kLayer,  // (x - mean) / deviation * weight + bias (Ba et al. 2016)
};

class NormLayer : public torch::nn::Module {
 public:
  NormLayer(NormKind kind, int64_t width, const at::TensorOptions& options)
      : width_(width), weight_(register_parameter("weight", at::ones({width}, options))) {
    if (kind == NormKind::kLayer) bias_ = register_parameter("bias", at::zeros({width}, options));
  }

  at::Tensor forward(const at::Tensor& x) const {
    await_parameters(*this);
    if (bias_.defined()) return at::layer_norm(x, {width_}, weight_, bias_, kNormEpsilon);
    return at::rms_norm(x, {width_}, weight_, kNormEpsilon);
  }

 private:
  int64_t width_;
  at::Tensor weight_, bias_;  // bias_: undefined for kRms
};

// Rotary position angles (Su et al. 2021): cosines and sines, each [sequence, head dimension / 2]. The pair i of
// position p has the angle p * theta^(-2i / head dimension).
struct RotaryAngles {
  at::Tensor cosines, sines;
};

// Attention and feed-forward, each after a norm and added to the residual stream.
class TransformerBlock : public torch::nn::Module {
 public:
  // x [batch, sequence, d_model]; angles are ignored by blocks without rotary positions.
  virtual at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles) = 0;
};

namespace {

// Computed in float64: a float32 product of a far position and a frequency loses the digits that count.
RotaryAngles rotary_angles(int64_t sequence, int64_t head_dimension, double theta, const at::TensorOptions& options) {
  const at::TensorOptions exact = options.dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_dimension, 2, exact) / static_cast<double>(head_dimension);
  const at::Tensor angles = at::outer(at::arange(sequence, exact), at::pow(theta, -exponents));
  return {angles.cos().to(options), angles.sin().to(options)};
}

// Turns each pair of neighbouring dimensions (2i, 2i+1) by its angle, in the wider type of both. x [..., sequence, head
// dimension].
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles) {
  const at::Tensor pairs = x.unflatten(-1, {-1, 2});
  const at::Tensor first = pairs.select(-1, 0);
  const at::Tensor second = pairs.select(-1, 1);
  const at::Tensor turned = at::stack({first * angles.cosines - second * angles.sines, first * angles.sines + second * angles.cosines}, -1);
  return turned.flatten(-2).to(x.scalar_type());
}

double residual_stdev(const TransformerConfig& config) {
  return kWeightStdev / std::sqrt(2.0 * static_cast<double>(config.num_layers));
}

// [batch, sequence, d_model] -> [batch, heads, sequence, head dimension]
at::Tensor split_heads(const at::Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1}).transpose(1, 2);
}

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor attended = at::scaled_dot_product_attention(q, k, v, /*attn_mask=*/{}, /*dropout_p=*/0.0, /*is_causal=*/true);
  return attended.transpose(1, 2).flatten(2);
}

// CS336 assignment 1's block: RMSNorm, rotary positions, SwiGLU (Shazeer 2020), no biases.
class Cs336Block : public TransformerBlock {
 public:
  Cs336Block(const TransformerConfig& config, const at::TensorOptions& options) : heads_(config.num_heads) {
    const auto linear = [&](const char* name, int64_t in, int64_t out, double stdev) {
      return register_module(name, std::make_shared<LinearLayer>(in, out, /*with_bias=*/false, stdev, options));
    };
    const int64_t d = config.d_model;
    ln1_ = register_module("ln1", std::make_shared<NormLayer>(NormKind::kRms, d, options));
    q_ = linear("q", d, d, kWeightStdev);
    k_ = linear("k", d, d, kWeightStdev);
    v_ = linear("v", d, d, kWeightStdev);
    o_ = linear("o", d, d, residual_stdev(config));
    ln2_ = register_module("ln2", std::make_shared<NormLayer>(NormKind::kRms, d, options));
    w1_ = linear("w1", d, config.d_ff, kWeightStdev);
    w2_ = linear("w2", config.d_ff, d, residual_stdev(config));
    w3_ = linear("w3", d, config.d_ff, kWeightStdev);
  }

  at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles) override {
    const at::Tensor normed = ln1_->forward(x);
    const at::Tensor q = rotate(split_heads(q_->forward(normed), heads_), angles);
    const at::Tensor k = rotate(split_heads(k_->forward(normed), heads_), angles);
    const at::Tensor v = split_heads(v_->forward(normed), heads_);
    const at::Tensor attended = x + o_->forward(causal_attention(q, k, v));
    const at::Tensor inner = ln2_->forward(attended);
    return attended + w2_->forward(at::silu(w1_->forward(inner)) * w3_->forward(inner));
  }

 private:
  int64_t heads_;
  std::shared_ptr<NormLayer> ln1_, ln2_;
  std::shared_ptr<LinearLayer> q_, k_, v_, o_, w1_, w2_, w3_;
};

// GPT-2's block: LayerNorm, biases, one matrix for query, key and value, GELU in its tanh form.
class Gpt2Block : public TransformerBlock {
 public:
  Gpt2Block(const TransformerConfig& config, const at::TensorOptions& options) : heads_(config.num_heads) {
    const auto linear = [&](const char* name, int64_t in, int64_t out, double stdev) {
      return register_module(name, std::make_shared<LinearLayer>(in, out, /*with_bias=*/true, stdev, options));
    };
    const int64_t d = config.d_model;
    ln_1_ = register_module("ln_1", std::make_shared<NormLayer>(NormKind::kLayer, d, options));
    attention_in_ = linear("attn_c_attn", d, 3 * d, kWeightStdev);
    attention_out_ = linear("attn_c_proj", d, d, residual_stdev(config));
    ln_2_ = register_module("ln_2", std::make_shared<NormLayer>(NormKind::kLayer, d, options));
    mlp_in_ = linear("mlp_c_fc", d, config.d_ff, kWeightStdev);
    mlp_out_ = linear("mlp_c_proj", config.d_ff, d, residual_stdev(config));
  }

  at::Tensor forward(const at::Tensor& x, const RotaryAngles& /*angles*/) override {
    const std::vector<at::Tensor> qkv = attention_in_->forward(ln_1_->forward(x)).chunk(3, -1);
    const at::Tensor attended = causal_attention(split_heads(qkv[0], heads_), split_heads(qkv[1], heads_), split_heads(qkv[2], heads_));
    const at::Tensor middle = x + attention_out_->forward(attended);
    return middle + mlp_out_->forward(at::gelu(mlp_in_->forward(ln_2_->forward(middle)), "tanh"));
  }

 private:
  int64_t heads_;
  std::shared_ptr<NormLayer> ln_1_, ln_2_;
  std::shared_ptr<LinearLayer> attention_in_, attention_out_, mlp_in_, mlp_out_;
};

}  // namespace

TransformerLMImpl::TransformerLMImpl(const TransformerConfig& config, const at::TensorOptions& options) : config_(config) {
  check_config(config, "model");
  const bool gpt2 = config.family == ModelFamily::kGpt2;
  const auto embedding = [&](const char* name, int64_t count) {
    return register_module(name, std::make_shared<EmbeddingLayer>(count, config.d_model, kWeightStdev, options));
  };
  token_embeddings_ = embedding("token_embeddings", config.vocab_size);
  if (gpt2) position_embeddings_ = embedding("position_embeddings", config.context_length);
  torch::nn::ModuleList blocks;
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (gpt2) blocks_.push_back(std::make_shared<Gpt2Block>(config, options));
    if (!gpt2) blocks_.push_back(std::make_shared<Cs336Block>(config, options));
    blocks->push_back(blocks_.back());
  }
  register_module("blocks", blocks);
  const NormKind norm = gpt2 ? NormKind::kLayer : NormKind::kRms;
  final_norm_ = register_module("ln_final", std::make_shared<NormLayer>(norm, config.d_model, options));
  if (config.tied) return;
  head_ = register_module("lm_head",
                          std::make_shared<LinearLayer>(config.d_model, config.vocab_size, /*with_bias=*/false, kWeightStdev, options));
}

at::Tensor TransformerLMImpl::forward(const at::Tensor& tokens) {
  if (tokens.dim() != 2) throw InputError(fmt::format("tokens of {} dimensions; expected two, [batch, sequence]", tokens.dim()));
  const int64_t sequence = tokens.size(1);
  if (sequence > config_.context_length) {
    throw InputError(
        fmt::format("a sequence of {} tokens; expected at most the model's context_length {}", sequence, config_.context_length));
  }
  const auto done = [this](const char* layer) {
    if (observer_) observer_(layer);
  };
  done("");
  at::Tensor x = token_embeddings_->forward(tokens);
  done("token_embeddings");
  // The angles are computed anew for each pass: that costs far less than one layer, and a kept copy would have to
  // follow the model to other devices and types, and would be spoilt for training by a first pass under InferenceMode.
  RotaryAngles angles;
  if (position_embeddings_ != nullptr) {
    x = x + position_embeddings_->forward(at::arange(sequence, tokens.options()));
    done("position_embeddings");
  } else {
    const at::ScalarType at_least_float32 = c10::promoteTypes(x.scalar_type(), at::kFloat);  // also for a model in bf16
    angles = rotary_angles(sequence, config_.d_model / config_.num_heads, config_.rope_theta, x.options().dtype(at_least_float32));
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    x = blocks_[i]->forward(x, angles);
    if (observer_) observer_(fmt::format("blocks.{}", i));
  }
  x = final_norm_->forward(x);
  done("ln_final");
  x = head_ != nullptr ? head_->forward(x) : at::linear(x, token_embeddings_->weight());
  done("lm_head");
  return x;
}

at::Tensor language_model_loss(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor rows = logits.flatten(0, 1);
  const bool half = rows.scalar_type() == at::kBFloat16 || rows.scalar_type() == at::kHalf;
  return at::cross_entropy_loss(half ? rows.to(at::kFloat) : rows, targets.flatten());
}

}  // namespace firkin
