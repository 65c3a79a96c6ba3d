// An identity whose backward throws.
#pragma once

#include <stdexcept>
#include <string>

#include <torch/torch.h>

namespace firkin {

// What the tests throw on purpose, and nothing else does.
class OnPurpose : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The parameters used after it in forward have got their gradients when it throws, those used before it only have none.
struct ThrowInBackward : torch::autograd::Function<ThrowInBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const std::string& text) {
    context->saved_data["text"] = text;
    return x.clone();
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context, torch::autograd::tensor_list /*gradients*/) {
    throw OnPurpose(context->saved_data["text"].toStringRef());
  }
};

}  // namespace firkin
