#include "train/adamw.h"

#include <tuple>
#include <utility>
#include <vector>

namespace firkin {

std::unique_ptr<torch::optim::AdamW> make_adamw(const torch::nn::Module& module, const AdamWSettings& settings) {
  std::vector<at::Tensor> decaying;
  std::vector<at::Tensor> others;
  for (const at::Tensor& parameter : module.parameters()) {
    if (parameter.requires_grad()) (parameter.dim() >= 2 ? decaying : others).push_back(parameter);
  }
  const auto options = [&settings](double weight_decay) {
    auto result = std::make_unique<torch::optim::AdamWOptions>();
    result->betas({settings.beta1, settings.beta2}).eps(settings.epsilon).weight_decay(weight_decay);
    return result;
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  if (!decaying.empty()) groups.emplace_back(std::move(decaying), options(settings.weight_decay));
  if (!others.empty()) groups.emplace_back(std::move(others), options(0));
  return std::make_unique<torch::optim::AdamW>(std::move(groups));
}

void set_learning_rate(torch::optim::AdamW& optimizer, double learning_rate) {
  for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) group.options().set_lr(learning_rate);
}

}  // namespace firkin
