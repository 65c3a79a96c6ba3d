// Transformer blocks: attention and feed-forward, each behind a norm and added to the residual stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "model/transformer_config.h"

#include <torch/nn/module.h>

namespace firkin {

// Rotary position angles (Su et al. 2021): cosines and sines, each [sequence, head dimension / 2]. The pair i of position p has the angle
// p * theta^(-2i / head dimension). Computed in float64: a float32 product of a far position and a frequency loses the digits that count.
struct RotaryAngles {
  at::Tensor cosines;
  at::Tensor sines;
};
RotaryAngles rotary_angles(int64_t sequence, int64_t head_dimension, double theta, const at::TensorOptions& options);

// Turns each pair of neighbouring dimensions (2i, 2i+1) by its angle. x [..., sequence, head dimension]. Computes in the wider type of x
// and the angles, and returns the type of x.
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
