// The LibTorch module that DataParallel wraps in place of a Python module. It has the same parameters, and follows
// changes.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/module_state.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/extension.h>

// Hidden, like the types of pybind11 that these classes contain.
#pragma GCC visibility push(hidden)
namespace firkin::python {

namespace py = pybind11;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Divides "layers.0.weight" into "layers.0" and "weight".
inline std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

inline torch::nn::Module& make_path(torch::nn::Module& root, const std::string& path) {
  if (path.empty()) return root;
  const auto [parent_path, name] = split_path(path);
  torch::nn::Module& parent = make_path(root, parent_path);
  if (const auto* known = parent.named_children().find(name)) return **known;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

// The contents of a Python module's dictionaries at record(), by which to see whether they have changed. Needs the GIL.
class Dictionaries {
 public:
  void record(const py::list& dictionaries) {
    dictionaries_.clear();
    for (const py::handle each : dictionaries) {
      Contents contents{.dictionary = py::reinterpret_borrow<py::dict>(each), .recorded = {}};
      for_each(contents.dictionary, [&](PyObject* name, PyObject* value) {
        contents.recorded.emplace_back(py::reinterpret_borrow<py::object>(name), py::reinterpret_borrow<py::object>(value));
        return true;
      });
      dictionaries_.push_back(std::move(contents));
    }
  }

  // Whether the dictionaries have the same names and objects as at record(). For each object that is another one,
  // is_same(now) decides.
  template <typename IsSame>
  bool are_unchanged(IsSame is_same) const {
    for (const Contents& each : dictionaries_) {
      size_t position = 0;
      const bool is_unchanged = for_each(each.dictionary, [&](PyObject* name, PyObject* now) {
        if (position == each.recorded.size()) return false;
        const auto& [recorded_name, recorded] = each.recorded[position++];
        return name == recorded_name.ptr() && (now == recorded.ptr() || is_same(now));
      });
      if (!is_unchanged || position < each.recorded.size()) return false;
    }
    return true;
  }

 private:
  struct Contents {
    py::dict dictionary;
    // Names and objects. Keeps these alive, so that no new object gets the address of an old one.
    std::vector<std::pair<py::object, py::object>> recorded;
  };

  template <typename Visit>
  static bool for_each(const py::dict& dictionary, Visit visit) {
    PyObject* name = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t position = 0; PyDict_Next(dictionary.ptr(), &position, &name, &value) != 0;) {
      if (!visit(name, value)) return false;
    }
    return true;
  }

  std::vector<Contents> dictionaries_;
};

inline PyObject* parameter_class() {
  static PyObject* const kClass = py::object(py::module_::import("torch.nn").attr("Parameter")).release().ptr();
  return kClass;
}

// Whether the object is a tensor and no parameter. During a forward such a tensor may take a parameter's place; the
// parameter still belongs to the module.
inline bool is_no_parameter(PyObject* object) {
  if (!THPVariable_Check(object)) return false;
  return !THPVariable_Unpack(object).is_leaf() || PyObject_IsInstance(object, parameter_class()) == 0;
}

// By what a mirror notices that the Python module's parameters or buffers have changed.
struct PythonModule {
  Dictionaries structure;  // modules and parameters
  Dictionaries buffers;
  bool always_asks = false;  // some modules keep buffers where record() does not see them
  py::object read_module;    // called with whether more has changed than buffers
};

// Has the Python module's parameters under the same names and in the same order, for DataParallel and
// await_parameters(). Names are paths, "layers.0.weight". A tied tensor is there under each of its names.
class MirroredModule final : public MirrorModule {
 public:
  MirroredModule(const NamedTensors& parameters, const NamedTensors& buffers) : MirrorModule("module") {
    hold(parameters);
    hold_buffers(buffers);
  }

  // Replaces the parameters, and makes new modules for them.
  void hold(const NamedTensors& parameters) {
    parameters_.clear();
    for (const auto& child : named_children()) unregister_module(child.key());
    for (const auto& [full_name, tensor] : parameters) {
      const auto [path, name] = split_path(full_name);
      make_path(*this, path).register_parameter(name, tensor, tensor.requires_grad());
    }
  }
  void hold_buffers(const NamedTensors& buffers) {
    buffers_.clear();
    for (const auto& [name, tensor] : buffers) buffers_.push_back({name, tensor});
  }

  // Records the dictionaries, for read() and is_changed(). read_module: called by read() after a change. Needs
  // the GIL.
  void record_module(py::object read_module, const py::list& structure, const py::list& buffers, bool always_asks) {
    python_ = {new PythonModule{.structure = {}, .buffers = {}, .always_asks = always_asks, .read_module = std::move(read_module)},
               DeleteWithGil()};
    python_->structure.record(structure);
    python_->buffers.record(buffers);
  }

  void read() override {
    const py::gil_scoped_acquire gil;
    const std::shared_ptr<PythonModule> python = python_;  // a copy, because read_module() may call record_module() again
    if (python == nullptr) return;
    bool have_values_changed = python->always_asks;
    const bool is_unchanged = python->structure.are_unchanged(is_no_parameter) && python->buffers.are_unchanged([&](PyObject* /*now*/) {
      have_values_changed = true;
      return true;
    });
    if (!is_unchanged || have_values_changed) python->read_module(!is_unchanged);
  }
  const std::vector<NamedTensor>& buffers_there() const override { return buffers_; }
  // Needs the GIL.
  bool is_changed() const { return python_ != nullptr && !python_->structure.are_unchanged(is_no_parameter); }

 private:
  struct DeleteWithGil {
    void operator()(PythonModule* python) const {
      const py::gil_scoped_acquire gil;
      delete python;
    }
  };

  std::vector<NamedTensor> buffers_;
  std::shared_ptr<PythonModule> python_;
};

}  // namespace firkin::python
#pragma GCC visibility pop
