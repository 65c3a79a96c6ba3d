#include "workload/synthetic_workload.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

#include <torch/optim/sgd.h>

namespace firkin {
namespace {

struct EqualTensors : torch::nn::Module {
  EqualTensors(const SyntheticTensors& tensors, c10::Device device) {
    const int64_t elements = tensors.bytes / 4;
    for (int64_t i = 0; i < tensors.count; ++i) {
      all.push_back(
          register_parameter(fmt::format("tensor{}", i), at::full({elements}, 0.5, at::TensorOptions(at::kFloat).device(device))));
    }
  }
  std::vector<at::Tensor> all;
};

}  // namespace

Workload make_synthetic_workload(const SyntheticTensors& tensors, c10::Device device) {
  if (tensors.count < 1 || tensors.bytes < kFloatBytes || tensors.bytes % kFloatBytes != 0) {
    throw InputError(fmt::format("synthetic tensors: {} of {} bytes; expected at least one, of a positive multiple of {} bytes",
                                 tensors.count, tensors.bytes, kFloatBytes));
  }
  auto module = std::make_shared<EqualTensors>(tensors, device);
  Workload workload;
  workload.module = module;
  workload.parameters = module->all;
  workload.loss = [module](int64_t /*step*/) {
    at::Tensor loss = at::zeros({}, at::TensorOptions(module->all[0].device()));
    for (const at::Tensor& tensor : module->all) loss = loss + tensor.square().sum();
    return loss;
  };
  workload.optimizer = std::make_shared<torch::optim::SGD>(module->all, 1e-4);
  return workload;
}

}  // namespace firkin
