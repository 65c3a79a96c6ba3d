// Workloads of a module and its loss; the small one steps in a millisecond.
#pragma once

#include "../torch.h"
#include "workload/workload.h"

namespace firkin {

// Under SGD.
inline Workload workload_of(std::shared_ptr<torch::nn::Module> module, std::function<at::Tensor(int64_t step)> loss) {
  Workload workload;
  workload.parameters = module->parameters();
  workload.module = std::move(module);
  workload.loss = std::move(loss);
  workload.optimizer = std::make_shared<torch::optim::SGD>(workload.parameters, 0.001);
  return workload;
}

inline Workload small_workload(int64_t width = 32) {
  torch::nn::Sequential net(torch::nn::Linear(width, width), torch::nn::ReLU(), torch::nn::Linear(width, width), torch::nn::ReLU(),
                            torch::nn::Linear(width, 1));
  const at::Tensor x = at::ones({4, width});
  return workload_of(net.ptr(), [net, x](int64_t step) mutable { return net->forward(x + static_cast<double>(step)).mean(); });
}

}  // namespace firkin
