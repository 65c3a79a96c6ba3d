// The layers of transformers, on any device. LibTorch's own modules cannot be made on the meta device, and draw their random numbers
// before one can say which.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <torch/nn/module.h>

namespace firkin {

// A parameter of this shape, normal with the given standard deviation.
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

}  // namespace firkin
