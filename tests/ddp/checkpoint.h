// Activation checkpointing: a part of the forward runs again in backward, and is differentiated there by a backward inside the backward.
#pragma once

#include <functional>

#include <torch/torch.h>

namespace firkin {

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

}  // namespace firkin
