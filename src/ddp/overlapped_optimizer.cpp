#include "firkin/ddp/overlapped_optimizer.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <exception>

#include "firkin/base/units.h"

#include <torch/nn/utils/clip_grad.h>

namespace firkin {

OverlappedOptimizer::OverlappedOptimizer(DataParallel& ddp, torch::optim::Optimizer& optimizer) : ddp_(&ddp), optimizer_(&optimizer) {}

OverlappedOptimizer::~OverlappedOptimizer() {
  try {
    drain();
  } catch (const std::exception& error) {
    TORCH_WARN("OverlappedOptimizer: the last step is not complete: ", error.what());
  }
}

void OverlappedOptimizer::step() {
  ddp_->step(*optimizer_);
}

double OverlappedOptimizer::clip_gradients(double max_norm) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  drain();
  const double waited_s = std::chrono::duration<double>(Clock::now() - started).count();
  if (waited_s > 0.001) {
    TORCH_WARN_ONCE("clip_gradients() waits for all gradients, here ", format_seconds(waited_s),
                    ", which the strategy ordered would have hidden behind the next forward");
  }
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer_->param_groups()) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

}  // namespace firkin
