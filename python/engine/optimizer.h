// A Python optimiser in the place of one of LibTorch's.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/optimizer_state.h"
#include "firkin/base/error.h"

#include <torch/extension.h>
#include <torch/optim/optimizer.h>

// Hidden like the types of pybind11 that these classes contain.
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

// All entries of a group except its parameters. What the program may change in place is copied: a learning rate may be a tensor, betas a
// list.
inline py::dict copy_of_options(const py::dict& group) {
  py::dict copy;
  for (const auto& [name, value] : group) {
    if (py::cast<std::string>(name) == "params") continue;
    if (THPVariable_Check(value.ptr())) {
      copy[name] = THPVariable_Unpack(value.ptr()).detach().clone();
    } else if (PyList_Check(value.ptr())) {
      copy[name] = value.attr("copy")();
    } else {
      copy[name] = value;
    }
  }
  return copy;
}

// Writes into tensors and lists that the group has, because the program may hold them.
inline void assign_options(py::dict group, const py::dict& from) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, value] : copy_of_options(from)) {
    const py::object now = group.attr("get")(name);
    if (THPVariable_Check(value.ptr()) && THPVariable_Check(now.ptr())) {
      THPVariable_Unpack(now.ptr()).copy_(THPVariable_Unpack(value.ptr()));
    } else if (PyList_Check(value.ptr()) && PyList_Check(now.ptr())) {
      now[py::slice(0, py::len(now), 1)] = value;
    } else {
      group[name] = value;
    }
  }
}

// Whether an option has the same value. Waits for a device that has it.
inline bool are_equal(const py::handle& one, const py::handle& other) {
  if (one.is(other)) return true;
  if (THPVariable_Check(one.ptr()) && THPVariable_Check(other.ptr())) {
    const at::Tensor &a = THPVariable_Unpack(one.ptr()), &b = THPVariable_Unpack(other.ptr());
    return a.dtype() == b.dtype() && a.device() == b.device() && at::equal(a, b);
  }
  const int is_equal = PyObject_RichCompareBool(one.ptr(), other.ptr(), Py_EQ);
  if (is_equal < 0) PyErr_Clear();  // arrays, for example, have no single answer
  return is_equal == 1;
}

// The options of one group: those that the optimiser has now, or a copy of them.
class PythonOptions final : public ForeignOptions {
 public:
  explicit PythonOptions(py::dict copy) : held_(hold(std::move(copy))) {}
  PythonOptions(Held optimizer, size_t index) : held_(std::move(optimizer)), index_(index) {}

  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    const py::gil_scoped_acquire gil;
    return std::make_unique<PythonOptions>(copy_of_options(group()));
  }
  void assign(const torch::optim::OptimizerOptions& from) override {
    const py::gil_scoped_acquire gil;
    const py::dict now = group(), wanted = dynamic_cast<const PythonOptions&>(from).group();
    for (const py::handle name : py::list(now)) {  // what an optimiser added in its step
      if (!wanted.contains(name) && py::cast<std::string>(name) != "params") now.attr("pop")(name);
    }
    assign_options(now, wanted);
  }
  bool assign_changes(const torch::optim::OptimizerOptions& before, const torch::optim::OptimizerOptions& after) override {
    const py::gil_scoped_acquire gil;
    const py::dict old = dynamic_cast<const PythonOptions&>(before).group();
    py::dict changed;
    for (const auto& [name, value] : dynamic_cast<const PythonOptions&>(after).group()) {
      if (!are_equal(value, old.attr("get")(name))) changed[name] = value;
    }
    assign_options(group(), changed);
    return !changed.empty();
  }

 private:
  py::dict group() const {
    if (!index_) return *held_;
    const py::list groups = held_->attr("param_groups");  // looked up at each use: load_state_dict() replaces groups
    if (*index_ >= groups.size()) {
      throw RuntimeError("a parameter group was removed from the optimiser before its step was complete; expected drain() before");
    }
    return groups[*index_];
  }

  Held held_;
  std::optional<size_t> index_;
};

class PythonOptimizer final : public ForeignOptimizer {
 public:
  PythonOptimizer(std::vector<torch::optim::OptimizerParamGroup> groups, std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                  py::function step, py::object divide)
      : ForeignOptimizer(std::move(groups), std::move(defaults)), step_(hold(std::move(step))), divide_(hold(std::move(divide))) {}

  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const py::gil_scoped_acquire gil;
    (*step_)();
    return {};
  }
  void divide(const std::vector<Part>& parts) override {
    const py::gil_scoped_acquire gil;
    py::list tuples;
    for (const Part& part : parts) tuples.append(py::make_tuple(part.parameter, part.run, part.divided));
    (*divide_)(tuples);
  }

 private:
  Held step_;
  Held divide_;  // None for an optimiser that is not sharded
};

// Wraps a torch.optim.Optimizer of Python, with the groups that it has now. Options are read from its groups and
// written to them. step and divide do what ForeignOptimizer's methods do; an exception of theirs is thrown as
// pybind11::error_already_set. Acquires the GIL where it is needed.
inline std::unique_ptr<torch::optim::Optimizer> wrap_optimizer(py::object optimizer, py::function step, py::object divide) {
  const py::list pythons = optimizer.attr("param_groups");
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const py::handle group : pythons) groups.emplace_back(py::cast<std::vector<at::Tensor>>(group["params"]));
  auto defaults = std::make_unique<PythonOptions>(py::dict(optimizer.attr("defaults")));
  auto wrapped = std::make_unique<PythonOptimizer>(std::move(groups), std::move(defaults), std::move(step), std::move(divide));
  const Held held = hold(std::move(optimizer));
  // The constructor above copies options, so the groups' own are put in afterwards.
  for (size_t i = 0; i < pythons.size(); ++i) wrapped->param_groups()[i].set_options(std::make_unique<PythonOptions>(held, i));
  return wrapped;
}

}  // namespace firkin::python
#pragma GCC visibility pop
