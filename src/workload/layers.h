// Transformer layers, on any device. LibTorch's own modules cannot be made on the meta device, and draw their random
// numbers before a device can be chosen.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/transformer_config.h"

#include <torch/nn/module.h>

namespace firkin {

// A parameter of this shape with normally distributed values.
at::Tensor normal_parameter(at::IntArrayRef shape, double stdev, const at::TensorOptions& options);

// y = x W^T + b. weight [out, in], bias [out].
class LinearLayer : public torch::nn::Module {
 public:
  LinearLayer(int64_t in, int64_t out, bool with_bias, double stdev, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor weight_;
  at::Tensor bias_;
};

// One learned vector per index. weight [count, width].
class EmbeddingLayer : public torch::nn::Module {
 public:
  EmbeddingLayer(int64_t count, int64_t width, double stdev, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& indices) const;
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
  NormLayer(NormKind kind, int64_t width, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  int64_t width_;
  at::Tensor weight_;
  at::Tensor bias_;  // undefined for kRms
};

// Transformer blocks: attention and feed-forward, each after a norm and added to the residual stream.

// Rotary position angles (Su et al. 2021): cosines and sines, each [sequence, head dimension / 2]. The pair i of
// position p has the angle p * theta^(-2i / head dimension). Computed in float64: a float32 product of a far position
// and a frequency loses the digits that count.
struct RotaryAngles {
  at::Tensor cosines;
  at::Tensor sines;
};
RotaryAngles rotary_angles(int64_t sequence, int64_t head_dimension, double theta, const at::TensorOptions& options);

// Turns each pair of neighbouring dimensions (2i, 2i+1) by its angle. x [..., sequence, head dimension]. Computes in
// the wider type of x and the angles, and returns the type of x.
at::Tensor rotate(const at::Tensor& x, const RotaryAngles& angles);

class TransformerBlock : public torch::nn::Module {
 public:
  // x [batch, sequence, d_model]; angles are ignored by blocks without rotary positions.
  virtual at::Tensor forward(const at::Tensor& x, const RotaryAngles& angles) = 0;
};

std::shared_ptr<TransformerBlock> make_block(const TransformerConfig& config, const at::TensorOptions& options);

// Standard deviation of a fresh weight.
inline constexpr double kWeightStdev = 0.02;

}  // namespace firkin
