#include "layers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/zeros.h>

#include "firkin/ddp/await_parameters.h"

namespace firkin {
namespace {

constexpr double kNormEpsilon = 1e-5;

}  // namespace

at::Tensor normal_parameter(at::IntArrayRef shape, double stdev, const at::TensorOptions& options) {
  at::NoGradGuard no_grad;
  at::Tensor parameter = at::empty(shape, options);
  if (!parameter.is_meta()) parameter.normal_(0, stdev);
  return parameter;
}

LinearLayer::LinearLayer(int64_t in, int64_t out, bool with_bias, double stdev, const at::TensorOptions& options)
    : weight_(register_parameter("weight", normal_parameter({out, in}, stdev, options))) {
  if (with_bias) bias_ = register_parameter("bias", at::zeros({out}, options));
}

at::Tensor LinearLayer::forward(const at::Tensor& x) const {
  await_parameters(*this);
  return at::linear(x, weight_, bias_);
}

EmbeddingLayer::EmbeddingLayer(int64_t count, int64_t width, double stdev, const at::TensorOptions& options)
    : weight_(register_parameter("weight", normal_parameter({count, width}, stdev, options))) {}

at::Tensor EmbeddingLayer::forward(const at::Tensor& indices) const {
  await_parameters(*this);
  return at::embedding(weight_, indices);
}

NormLayer::NormLayer(NormKind kind, int64_t width, const at::TensorOptions& options)
    : width_(width), weight_(register_parameter("weight", at::ones({width}, options))) {
  if (kind == NormKind::kLayer) bias_ = register_parameter("bias", at::zeros({width}, options));
}

at::Tensor NormLayer::forward(const at::Tensor& x) const {
  await_parameters(*this);
  if (bias_.defined()) return at::layer_norm(x, {width_}, weight_, bias_, kNormEpsilon);
  return at::rms_norm(x, {width_}, weight_, kNormEpsilon);
}

}  // namespace firkin
