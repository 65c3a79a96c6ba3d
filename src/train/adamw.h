// AdamW as language models are trained with: norms' gains and all biases do not decay.
#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/optim/adamw.h>

namespace firkin {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of parameters of two dimensions or more; the others have none
};

// Over the module's trainable parameters (Loshchilov and Hutter 2019). The learning rate is set_learning_rate()'s.
std::unique_ptr<torch::optim::AdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings);

void set_learning_rate(torch::optim::AdamW& optimizer, double learning_rate);

}  // namespace firkin
