#include "train/nonfinite.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <cmath>

#include <torch/csrc/autograd/autograd.h>

namespace firkin {
namespace {

enum class Found { kNothing, kValue, kGradient };

struct Finding {
  Found what = Found::kNothing;
  size_t parameter = 0;  // in registration order
};

bool is_finite(const at::Tensor& tensor) {
  return !tensor.defined() || at::isfinite(tensor).all().item<bool>();
}

Finding find_on_this_rank(const std::vector<at::Tensor>& parameters, const std::vector<std::function<at::Tensor()>>& losses) {
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!is_finite(parameters[i].detach())) return {Found::kValue, i};
  }
  for (const auto& loss : losses) {
    const auto gradients = torch::autograd::grad({loss()}, parameters, {}, /*retain_graph=*/false, /*create_graph=*/false,
                                                 /*allow_unused=*/true);
    for (size_t i = gradients.size(); i-- > 0;) {
      if (!is_finite(gradients[i])) return {Found::kGradient, i};
    }
  }
  return {};
}

}  // namespace

std::string describe_nonfinite(const ProcessGroup& group, const torch::nn::Module& module,
                               const std::vector<std::function<at::Tensor()>>& losses, const std::vector<double>& rank_losses) {
  std::vector<std::string> names;
  std::vector<at::Tensor> parameters;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    names.push_back(item.key());
    parameters.push_back(item.value());
  }
  const Finding ours = find_on_this_rank(parameters, losses);
  const auto by_rank = all_gather(group, {static_cast<double>(ours.what), static_cast<double>(ours.parameter)});
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const auto what = static_cast<Found>(by_rank[rank][0]);
    const double loss = rank_losses[rank];
    if (what == Found::kNothing && std::isfinite(loss)) continue;
    const std::string where = what == Found::kNothing
                                  ? ""
                                  : fmt::format("; the first that is not finite: {}{}", what == Found::kValue ? "" : "the gradient of ",
                                                names[static_cast<size_t>(by_rank[rank][1])]);
    return fmt::format("rank {}: loss {:.6g}{}", rank, loss, where);
  }
  return "gradients that are finite on every rank, and whose sum is not";
}

}  // namespace firkin
