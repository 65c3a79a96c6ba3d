// What tests put into a forward: a part that runs again in backward, and one whose backward throws.
#pragma once

#include "../torch.h"

namespace firkin {

// Activation checkpointing: the part is differentiated by a backward inside the backward.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Body = std::function<at::Tensor(const at::Tensor&)>;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, Body* body) {
    context->saved_data["body"] = reinterpret_cast<int64_t>(body);
    context->save_for_backward({x});
    at::NoGradGuard no_grad;
    return (*body)(x);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context, torch::autograd::tensor_list gradients) {
    const auto* body = reinterpret_cast<Body*>(context->saved_data["body"].toInt());
    at::AutoGradMode with_grad(true);
    at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    (*body)(x).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

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
