// A small random module with the features that data-parallel training stumbles over, and backwards that throw where they are told to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "layered_net.h"

#include <torch/torch.h>

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
  bool teacher = false;                                // frozen copies of the last layer's parameters, moved by the optimiser's step
  bool computed = false;                               // a layer that puts a computed tensor in a parameter's place
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
struct ChaosNormImpl : public torch::nn::Module {
  ChaosNormImpl(int64_t width, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight, bias, mean, variance, batches;
};
TORCH_MODULE(ChaosNorm);

// Each forward computes its weight from the raw one.
struct ChaosComputedImpl : public torch::nn::Module {
  ChaosComputedImpl(int64_t width, const at::TensorOptions& options);
  at::Tensor forward(const at::Tensor& x);

  at::Tensor raw;
};
TORCH_MODULE(ChaosComputed);

// Its parameters have no values yet.
class ChaosModel : public torch::nn::Module {
 public:
  ChaosModel(const ChaosModelSpec& spec, c10::Device device);

  // Its parameters; computed tensors are none.
  std::vector<at::Tensor> leaves() const;

  // The buffer gets so many rows of this value.
  void set_bank(int64_t rows, double value);
  // Halves the first layer's weight, in place.
  void halve_weight();
  // The teacher moves towards the last layer, whose parameters are there.
  void move_teacher();
  const Layer& last() const { return out_; }

  // A layer without values before the last, "added0", "added1", ...; returns it.
  std::shared_ptr<torch::nn::Module> add_layer();

  // A new layer without values, trainable, in the place of layer i; returns it.
  std::shared_ptr<torch::nn::Module> replace_layer(int i);

  // text: what backward throws, as OnPurpose. The model must outlive the backward.
  at::Tensor loss(const at::Tensor& x, const ChaosPass& pass, const std::string& text);

 private:
  Layer make_layer() const;
  at::Tensor checkpointed(const at::Tensor& h, const ChaosPass& pass, const std::string& text);

  ChaosModelSpec spec_;
  c10::Device device_;
  std::vector<Layer> layers_;
  std::vector<Layer> added_;
  ChaosNorm norm_ = nullptr;
  Layer inner_ = nullptr;
  Layer wide_ = nullptr;
  ChaosComputed computed_ = nullptr;
  at::Tensor bank_;
  Layer out_ = nullptr;
  Layer teacher_ = nullptr;
  at::Tensor extra_;
  std::function<at::Tensor(const at::Tensor&)> inner_body_;
};

}  // namespace firkin
