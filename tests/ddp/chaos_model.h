// The module that a chaos sequence trains: small and random, with the features that data-parallel training stumbles over, and backwards
// that throw where they are told to.
#pragma once

#include "autograd_functions.h"
#include "layered_net.h"

namespace firkin {

enum class Checkpointing { kNone, kAlways, kSometimes };

struct ChaosModelSpec {
  int64_t width = 4;
  int depth = 2;                                       // layers before the last
  bool norm = false;                                   // BatchNorm1d, with buffers
  bool tied = false;                                   // the first layer's weight is used again
  bool frozen = false;                                 // the second layer's weight
  bool extra = false;                                  // a parameter that a rank may leave out
  bool mixed_dtypes = false;                           // a layer in double among floats
  bool bank = false;                                   // a buffer that may get other sizes
  Checkpointing checkpointing = Checkpointing::kNone;  // a layer whose forward runs again in a re-entrant backward
  bool shares_checkpointed = false;                    // and that is used outside as well
};

inline constexpr int kThrowNowhere = -1;
inline constexpr int kThrowInCheckpoint = -2;

// One forward and backward.
struct ChaosPass {
  bool uses_extra = true;
  bool checkpoints = true;  // where the model can
  // Where backward throws: before the gradients of layer i - 1 and after those of layer i, for i = 0 (all gradients have come) .. depth
  // (the last layer's have come); depth + 1: before any.
  int throw_at = kThrowNowhere;
};

// LibTorch's own modules are made on the CPU, and Module::to() cannot move them to every device: these are made where they belong.
struct ChaosNormImpl : torch::nn::Module {
  ChaosNormImpl(int64_t width, const at::TensorOptions& options) {
    weight = register_parameter("weight", at::zeros({width}, options));
    bias = register_parameter("bias", at::zeros({width}, options));
    mean = register_buffer("mean", at::zeros({width}, options));
    variance = register_buffer("variance", at::ones({width}, options));
    batches = register_buffer("batches", at::zeros({}, options.dtype(at::kLong)));
  }
  at::Tensor forward(const at::Tensor& x) {
    constexpr double kMomentum = 0.1, kEpsilon = 1e-5;
    batches.add_(1);
    return at::batch_norm(x, weight, bias, mean, variance, /*training=*/true, kMomentum, kEpsilon, /*cudnn_enabled=*/false);
  }
  at::Tensor weight, bias, mean, variance, batches;
};
TORCH_MODULE(ChaosNorm);

// Its parameters have no values yet.
class ChaosModel : public torch::nn::Module {
 public:
  ChaosModel(const ChaosModelSpec& spec, c10::Device device) : spec_(spec), options_(at::TensorOptions(device).dtype(at::kFloat)) {
    for (int i = 0; i < spec.depth; ++i) layers_.push_back(register_module(fmt::format("layer{}", i), make_layer()));
    if (spec.frozen && spec.depth > 1) layers_[1]->weight.set_requires_grad(false);
    if (spec.norm) norm_ = register_module("norm", ChaosNorm(spec.width, options_));
    if (spec.checkpointing != Checkpointing::kNone) inner_ = register_module("inner", make_layer());
    if (spec.mixed_dtypes) wide_ = register_module("wide", Layer(spec.width, spec.width, options_.dtype(at::kDouble)));
    if (spec.extra) extra_ = register_parameter("extra", at::zeros({spec.width}, options_));
    if (spec.bank) bank_ = register_buffer("bank", at::zeros({1, spec.width}, options_));
    out_ = register_module("out", Layer(spec.width, 3, options_));
  }

  // The buffer gets so many rows of this value.
  void set_bank(int64_t rows, double value) { bank_.set_data(at::full({rows, spec_.width}, value, bank_.options())); }
  // Halves the first layer's weight, in place.
  void halve_weight() {
    const at::NoGradGuard no_grad;
    layers_[0]->weight.mul_(0.5);
  }
  // A layer without values before the last, of this name; returns it.
  std::shared_ptr<torch::nn::Module> add_layer(const std::string& name) {
    return layers_.emplace_back(register_module(name, make_layer())).ptr();
  }
  // A new layer without values, trainable, in the place of layer i; returns it.
  std::shared_ptr<torch::nn::Module> replace_layer(size_t i) {
    return (layers_[i] = replace_module(fmt::format("layer{}", i), make_layer())).ptr();
  }

  // text: what backward throws, as OnPurpose. The model must outlive the backward.
  at::Tensor loss(const at::Tensor& x, const ChaosPass& pass, const std::string& text) {
    const auto guard = [&](const at::Tensor& h, int position) { return pass.throw_at == position ? ThrowInBackward::apply(h, text) : h; };
    at::Tensor h = x.detach().requires_grad_();  // so that backward gets to the very beginning
    for (size_t i = 0; i < layers_.size(); ++i) {
      h = layers_[i]->forward(guard(h, static_cast<int>(i)));
      if (i > 0) continue;
      if (norm_) h = norm_->forward(h);
      if (inner_) h = checkpointed(h, pass, text);
      if (wide_) h = wide_->forward(h.to(at::kDouble)).to(at::kFloat);
    }
    if (extra_.defined() && pass.uses_extra) h = h + extra_;
    if (spec_.tied) h = torch::tanh(at::matmul(h, layers_[0]->weight));
    h = out_->forward(guard(h, spec_.depth));
    return guard(h.pow(2).mean(), spec_.depth + 1);
  }

 private:
  Layer make_layer() const { return Layer(spec_.width, spec_.width, options_); }

  at::Tensor checkpointed(const at::Tensor& h, const ChaosPass& pass, const std::string& text) {
    const bool throws = pass.throw_at == kThrowInCheckpoint;
    inner_body_ = [this, throws, text](const at::Tensor& x) {
      const at::Tensor y = inner_->forward(x);
      return throws ? ThrowInBackward::apply(y, text) : y;
    };
    const at::Tensor result = pass.checkpoints ? Checkpoint::apply(h, &inner_body_) : inner_body_(h);
    return spec_.shares_checkpointed ? result + inner_->forward(h) : result;
  }

  ChaosModelSpec spec_;
  at::TensorOptions options_;
  std::vector<Layer> layers_;  // those that were added are behind the others
  ChaosNorm norm_ = nullptr;
  Layer inner_ = nullptr;
  Layer wide_ = nullptr;
  at::Tensor bank_;
  Layer out_ = nullptr;
  at::Tensor extra_;
  Checkpoint::Body inner_body_;
};

}  // namespace firkin
