// A workload that steps in a millisecond.
#pragma once

#include "../torch.h"
#include "workload/workload.h"

namespace firkin {

inline Workload small_workload(int64_t width = 32) {
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, width), torch::nn::ReLU(),
                            torch::nn::Linear(width, 1));
  Workload workload;
  workload.module = net.ptr();
  workload.parameters = net->parameters();
  const at::Tensor x = at::ones({4, width});
  workload.loss = [net, x](int64_t step) mutable { return net->forward(x + static_cast<double>(step)).mean(); };
  workload.optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.001);
  return workload;
}

}  // namespace firkin
