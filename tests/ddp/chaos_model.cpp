#include "chaos_plan.h"

#include "autograd_functions.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/module_parameters.h"

namespace firkin {

ChaosNormImpl::ChaosNormImpl(int64_t width, const at::TensorOptions& options) {
  weight = register_parameter("weight", at::zeros({width}, options));
  bias = register_parameter("bias", at::zeros({width}, options));
  mean = register_buffer("mean", at::zeros({width}, options));
  variance = register_buffer("variance", at::ones({width}, options));
  batches = register_buffer("batches", at::zeros({}, options.dtype(at::kLong)));
}

at::Tensor ChaosNormImpl::forward(const at::Tensor& x) {
  constexpr double kMomentum = 0.1;
  constexpr double kEpsilon = 1e-5;
  batches.add_(1);
  return at::batch_norm(x, weight, bias, mean, variance, /*training=*/true, kMomentum, kEpsilon, /*cudnn_enabled=*/false);
}

ChaosComputedImpl::ChaosComputedImpl(int64_t width, const at::TensorOptions& options) {
  raw = register_parameter("raw", at::zeros({width, width}, options));
}

at::Tensor ChaosComputedImpl::forward(const at::Tensor& x) {
  await_parameters(*this);
  const at::Tensor weight = raw * 1.5;
  if (parameters_.contains("weight")) {
    parameters_["weight"] = weight;
  } else {
    parameters_.insert("weight", weight);
  }
  return at::linear(x, weight);
}

ChaosModel::ChaosModel(const ChaosModelSpec& spec, c10::Device device) : spec_(spec), device_(device) {
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  for (int i = 0; i < spec.depth; ++i) layers_.push_back(register_module(fmt::format("layer{}", i), make_layer()));
  if (spec.frozen && spec.depth > 1) layers_[1]->weight.set_requires_grad(false);
  if (spec.norm) norm_ = register_module("norm", ChaosNorm(spec.width, options));
  if (spec.checkpointing != Checkpointing::kNone) inner_ = register_module("inner", Layer(spec.width, spec.width, options));
  if (spec.mixed_dtypes) wide_ = register_module("wide", Layer(spec.width, spec.width, options.dtype(at::kDouble)));
  if (spec.extra) extra_ = register_parameter("extra", at::zeros({spec.width}, options));
  if (spec.computed) computed_ = register_module("computed", ChaosComputed(spec.width, options));
  if (spec.bank) bank_ = register_buffer("bank", at::zeros({1, spec.width}, options));
  out_ = register_module("out", Layer(spec.width, 3, options));
  if (!spec.teacher) return;
  teacher_ = register_module("teacher", Layer(spec.width, 3, options));
  for (at::Tensor& parameter : teacher_->parameters()) parameter.set_requires_grad(false);
}

Layer ChaosModel::make_layer() const {
  return Layer(spec_.width, spec_.width, at::TensorOptions(device_).dtype(at::kFloat));
}

std::vector<at::Tensor> ChaosModel::leaves() const {
  return tensors_of(parameters_in(*this));
}

void ChaosModel::set_bank(int64_t rows, double value) {
  bank_.set_data(at::full({rows, spec_.width}, value, bank_.options()));
}

void ChaosModel::halve_weight() {
  const at::NoGradGuard no_grad;
  layers_[0]->weight.mul_(0.5);
}

void ChaosModel::move_teacher() {
  constexpr double kWeight = 0.25;  // of the newest
  const at::NoGradGuard no_grad;
  teacher_->weight.lerp_(out_->weight, kWeight);
  teacher_->bias.lerp_(out_->bias, kWeight);
}

std::shared_ptr<torch::nn::Module> ChaosModel::add_layer() {
  added_.push_back(register_module(fmt::format("added{}", added_.size()), make_layer()));
  return added_.back().ptr();
}

std::shared_ptr<torch::nn::Module> ChaosModel::replace_layer(int i) {
  layers_[static_cast<size_t>(i)] = replace_module(fmt::format("layer{}", i), make_layer());
  return layers_[static_cast<size_t>(i)].ptr();
}

at::Tensor ChaosModel::checkpointed(const at::Tensor& h, const ChaosPass& pass, const std::string& text) {
  const bool throws = pass.throw_at == kThrowInCheckpoint;
  inner_body_ = [this, throws, text](const at::Tensor& x) {
    const at::Tensor y = inner_->forward(x);
    return throws ? ThrowInBackward::apply(y, text) : y;
  };
  at::Tensor result = pass.checkpoints ? Checkpoint::apply(h, &inner_body_) : inner_body_(h);
  if (spec_.shares_checkpointed) result = result + inner_->forward(h);
  return result;
}

at::Tensor ChaosModel::loss(const at::Tensor& x, const ChaosPass& pass, const std::string& text) {
  const auto guard = [&](const at::Tensor& h, int position) { return pass.throw_at == position ? ThrowInBackward::apply(h, text) : h; };
  at::Tensor h = x.detach().requires_grad_();  // so that backward gets to the very beginning
  for (int i = 0; i < spec_.depth; ++i) {
    h = layers_[static_cast<size_t>(i)]->forward(guard(h, i));
    if (i > 0) continue;
    if (norm_) h = norm_->forward(h);
    if (inner_) h = checkpointed(h, pass, text);
    if (computed_) h = torch::tanh(computed_->forward(h));
    if (wide_) h = wide_->forward(h.to(at::kDouble)).to(at::kFloat);
  }
  if (extra_.defined() && pass.uses_extra) h = h + extra_;
  if (spec_.tied) h = torch::tanh(at::matmul(h, layers_[0]->weight));
  for (Layer& layer : added_) h = layer->forward(h);
  const at::Tensor target = teacher_ ? teacher_->forward(h.detach()) : at::Tensor();
  h = out_->forward(guard(h, spec_.depth));
  if (teacher_) h = h - target;
  return guard(h.pow(2).mean(), spec_.depth + 1);
}

}  // namespace firkin
