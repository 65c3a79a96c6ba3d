// Where a loss that is no finite number came from.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"

#include <torch/nn/module.h>

namespace firkin {

// Looks for what is not finite on this rank: first among the parameters' values, then among the gradients of `losses` (the rank's
// micro-batches, computed anew, which touches neither grad() nor the hooks of DataParallel), in the order of backward. Gathers what each
// rank has found, and returns one line, the same on all: "rank 1: loss nan; the first that is not finite: the gradient of lm_head.weight".
// Collective.
//
// rank_losses: of the step, by rank.
std::string describe_nonfinite(const ProcessGroup& group, const torch::nn::Module& module,
                               const std::vector<std::function<at::Tensor()>>& losses, const std::vector<double>& rank_losses);

}  // namespace firkin
