// A LibTorch module in the shape of a Python one.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "firkin/ddp/module_parameters.h"

#include <torch/nn/module.h>

namespace firkin::python {

// Modules under the same names, with the same tensors in the same order: what DataParallel and await_parameters() need of a module.
// Names are paths, "layers.0.weight"; tied tensors come under each of their names.
std::shared_ptr<torch::nn::Module> mirror_module(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& buffers);

// The module of that path; "" is `root` itself. Null where it has neither parameters nor buffers, and so does not exist.
const torch::nn::Module* find_module(const torch::nn::Module& root, const std::string& path);

}  // namespace firkin::python
