// A Python optimiser in the place of one of LibTorch's.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "ddp/optimizer_state.h"

#include <torch/extension.h>
#include <torch/optim/optimizer.h>

// Hidden, like the types of pybind11 that these classes contain.
#pragma GCC visibility push(hidden)
namespace firkin::python {

namespace py = pybind11;

// A Python object that any thread may drop, whether it holds the GIL or not.
using Held = std::shared_ptr<const py::object>;

inline Held hold(py::object object) {
  return {new py::object(std::move(object)), [](const py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

class PythonOptimizer final : public ForeignOptimizer {
 public:
  PythonOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, py::function step)
      : ForeignOptimizer(std::move(groups), std::make_unique<ForeignOptions>()), step_(hold(std::move(step))) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const py::gil_scoped_acquire gil;
    (*step_)();
    return {};
  }

 private:
  Held step_;
};

// Wraps a torch.optim.Optimizer of Python, with the groups that it has now. step: steps it; an exception from it is
// thrown as pybind11::error_already_set. Needs the GIL, but the result does not.
inline std::unique_ptr<torch::optim::Optimizer> wrap_optimizer(const py::object& optimizer, py::function step) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const py::handle group : optimizer.attr("param_groups")) groups.emplace_back(py::cast<std::vector<at::Tensor>>(group["params"]));
  return std::make_unique<PythonOptimizer>(std::move(groups), std::move(step));
}

}  // namespace firkin::python
#pragma GCC visibility pop
