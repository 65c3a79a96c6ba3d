// A Python optimiser where the engine expects one of LibTorch's.
#pragma once

#include <memory>

#include "ddp/ordered/ordered.h"

#include <torch/csrc/utils/pybind.h>
#include <torch/optim/optimizer.h>

namespace firkin::python {

// optimizer: a torch.optim.Optimizer of Python. Its groups are those that it has now; options are read and written where it keeps them.
// What its step() raises is thrown as pybind11::error_already_set. Takes the GIL where it needs it.
std::unique_ptr<torch::optim::Optimizer> wrap_optimizer(pybind11::object optimizer);

}  // namespace firkin::python
