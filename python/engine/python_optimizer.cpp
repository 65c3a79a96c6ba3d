#include "python_optimizer.h"

#include <utility>
#include <vector>

namespace firkin::python {
namespace {

namespace py = pybind11;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;

// May be dropped by a thread that does not hold the GIL.
using Held = std::shared_ptr<const py::object>;

Held hold(py::object object) {
  return {new py::object(std::move(object)), [](const py::object* held) {
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

// All entries of a group but its parameters; tensors (a learning rate may be one) are copied.
py::dict copy_of_options(const py::dict& group) {
  py::dict copy;
  const py::object tensor_type = py::module_::import("torch").attr("Tensor");
  for (const auto& [name, value] : group) {
    if (py::cast<std::string>(name) == "params") continue;
    copy[name] = py::isinstance(value, tensor_type) ? value.attr("clone")() : py::reinterpret_borrow<py::object>(value);
  }
  return copy;
}

// Of one group of parameters: the group's own dictionary, or a copy of what it held.
class PythonOptions final : public ForeignOptions {
 public:
  explicit PythonOptions(py::object group) : group_(hold(std::move(group))) {}

  std::unique_ptr<OptimizerOptions> clone() const override {
    const py::gil_scoped_acquire gil;
    return std::make_unique<PythonOptions>(copy_of_options(*group_));
  }
  void assign(const OptimizerOptions& from) override {
    const py::gil_scoped_acquire gil;
    const py::dict options = copy_of_options(*dynamic_cast<const PythonOptions&>(from).group_);
    group_->attr("update")(options);
  }
  double get_lr() const override {
    const py::gil_scoped_acquire gil;
    return py::cast<double>((*group_)["lr"]);
  }
  void set_lr(const double lr) override {
    const py::gil_scoped_acquire gil;
    group_->attr("__setitem__")("lr", lr);
  }

 private:
  Held group_;
};

class PythonOptimizer final : public torch::optim::Optimizer {
 public:
  PythonOptimizer(std::vector<OptimizerParamGroup> groups, std::unique_ptr<OptimizerOptions> defaults, Held optimizer)
      : Optimizer(std::move(groups), std::move(defaults)), optimizer_(std::move(optimizer)) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const py::gil_scoped_acquire gil;
    optimizer_->attr("step")();
    return {};
  }

 private:
  Held optimizer_;
};

}  // namespace

std::unique_ptr<torch::optim::Optimizer> wrap_optimizer(py::object optimizer) {
  const py::list pythons = optimizer.attr("param_groups");
  std::vector<OptimizerParamGroup> groups;
  for (const py::handle group : pythons) groups.emplace_back(py::cast<std::vector<at::Tensor>>(group["params"]));
  auto defaults = std::make_unique<PythonOptions>(optimizer.attr("defaults"));
  auto wrapped = std::make_unique<PythonOptimizer>(std::move(groups), std::move(defaults), hold(std::move(optimizer)));
  // Now, because the constructor copies options: these are the groups' own.
  for (size_t i = 0; i < pythons.size(); ++i) wrapped->param_groups()[i].set_options(std::make_unique<PythonOptions>(pythons[i]));
  return wrapped;
}

}  // namespace firkin::python
