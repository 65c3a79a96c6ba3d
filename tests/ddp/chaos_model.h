// A small random module with the features that data-parallel training stumbles over, and backwards that throw where they are told to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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

class ChaosModel : public torch::nn::Module {
 public:
  explicit ChaosModel(const ChaosModelSpec& spec);

  // text: what backward throws, as OnPurpose. The model must outlive the backward.
  at::Tensor loss(const at::Tensor& x, const ChaosPass& pass, const std::string& text);

 private:
  at::Tensor checkpointed(const at::Tensor& h, const ChaosPass& pass, const std::string& text);

  ChaosModelSpec spec_;
  std::vector<torch::nn::Linear> layers_;
  torch::nn::BatchNorm1d norm_ = nullptr;
  torch::nn::Linear inner_ = nullptr;
  torch::nn::Linear wide_ = nullptr;
  torch::nn::Linear out_ = nullptr;
  at::Tensor extra_;
  std::function<at::Tensor(const at::Tensor&)> inner_body_;
};

}  // namespace firkin
