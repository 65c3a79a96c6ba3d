// The module firkin._engine: DataParallel over the parameters and the process group of a Python program. Built against one PyTorch, whose
// C++ interfaces are not stable: firkin/_native.py lets no other one load it.
#include <pybind11/functional.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddp/backward_watch.h"
#include "firkin/base/error.h"
#include "firkin/comm/group_error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "python_optimizer.h"

#include <torch/csrc/Exceptions.h>
#include <torch/extension.h>

namespace firkin::python {
namespace {

namespace py = pybind11;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// "layers.0.weight" -> "layers.0" and "weight".
std::pair<std::string, std::string> split_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  if (dot == std::string::npos) return {"", path};
  return {path.substr(0, dot), path.substr(dot + 1)};
}

torch::nn::Module& child(torch::nn::Module& parent, const std::string& name) {
  if (const auto* known = parent.named_children().find(name)) return **known;
  return *parent.register_module(name, std::make_shared<torch::nn::Module>(name));
}

torch::nn::Module& make_path(torch::nn::Module& root, const std::string& path) {
  if (path.empty()) return root;
  const auto [parent, name] = split_path(path);
  return child(make_path(root, parent), name);
}

// A LibTorch module in the shape of a Python one: under the same names, with the same tensors in the same order, which is what DataParallel
// and await_parameters() need. Names are paths, "layers.0.weight"; tied tensors come under each of their names.
std::shared_ptr<torch::nn::Module> mirror_module(const NamedTensors& parameters, const NamedTensors& buffers) {
  auto root = std::make_shared<torch::nn::Module>("module");
  for (const auto& [full_name, tensor] : parameters) {
    const auto [path, name] = split_path(full_name);
    make_path(*root, path).register_parameter(name, tensor, tensor.requires_grad());
  }
  for (const auto& [full_name, tensor] : buffers) {
    const auto [path, name] = split_path(full_name);
    make_path(*root, path).register_buffer(name, tensor);
  }
  return root;
}

// The module of that path; "" is `root` itself. Null where it has neither parameters nor buffers, and so does not exist.
const torch::nn::Module* find_module(const torch::nn::Module& root, const std::string& path) {
  if (path.empty()) return &root;
  const auto [parent_path, name] = split_path(path);
  const torch::nn::Module* parent = find_module(root, parent_path);
  if (parent == nullptr) return nullptr;
  for (const auto& item : parent->named_children()) {
    if (item.key() == name) return item.value().get();
  }
  return nullptr;
}

GradientHook gradient_hook(const std::string& compression) {
  if (compression == "none") return plain_all_reduce();
  if (compression == "bf16") return bf16_compression();
  if (compression == "fp16") return fp16_compression();
  throw InputError("compression '" + compression + "'; expected none, bf16 or fp16");
}

// What firkin.DistributedDataParallel gives, by name.
DataParallelOptions data_parallel_options(const py::kwargs& given) {
  DataParallelOptions result;
  result.strategy = find_strategy(py::cast<std::string>(given["strategy"]));
  result.cap.cap_bytes = py::cast<int64_t>(given["cap_bytes"]);
  result.cap.first_cap_bytes = py::cast<std::optional<int64_t>>(given["first_cap_bytes"]);
  if (const auto counts = py::cast<std::optional<std::vector<int64_t>>>(given["counts"])) {  // tensors per bucket, over ready_order
    result.plan.emplace();
    int64_t first = 0;
    for (const int64_t count : *counts) {
      result.plan->buckets.push_back({first, count});
      first += count;
    }
  }
  result.ready_order = py::cast<std::vector<int64_t>>(given["ready_order"]);
  result.gradient_hook = gradient_hook(py::cast<std::string>(given["compression"]));
  result.finish_with_backward = py::cast<bool>(given["finish_with_backward"]);
  result.find_unused_parameters = py::cast<bool>(given["find_unused_parameters"]);
  result.broadcast_buffers = py::cast<bool>(given["broadcast_buffers"]);
  if (py::cast<bool>(given["automatic"])) {
    result.buckets = automatic(
        {.plan_file = py::cast<std::string>(given["plan_file"]), .log = py::cast<std::function<void(const std::string&)>>(given["log"])});
  }
  return result;
}

// Deletes without the GIL: the destructor of a group waits for its threads, and one of these may be about to let go of something of
// Python's, for which it takes the GIL.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    delete object;
  }
};
template <class T>
using WithoutGil = std::unique_ptr<T, DeleteWithoutGil>;

// Every method releases the GIL: collectives wait for other ranks, and a Python optimiser takes it again.
class Engine {
 public:
  Engine(const NamedTensors& parameters, const NamedTensors& buffers, const c10::intrusive_ptr<c10d::ProcessGroup>& group, double timeout_s,
         const std::optional<std::string>& link, DataParallelOptions options)
      : mirror_(mirror_module(parameters, buffers)) {
    GroupOptions group_options;
    group_options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
    if (link) group_options.link = parse_link(*link, group->getSize());
    ProcessGroup adopted = adopt_process_group(group, group_options);
    ddp_ = wrap(std::move(adopted), std::move(options));
  }

  DataParallel& ddp() { return *ddp_; }
  // A Python module that will await its parameters, under all its names. Returns what await_module() takes.
  size_t add_awaiting(const std::vector<std::string>& paths) {
    awaiting_.emplace_back();
    for (const std::string& path : paths) {
      if (const torch::nn::Module* module = find_module(*mirror_, path)) awaiting_.back().push_back(module);
    }
    return awaiting_.size() - 1;
  }
  void await_module(size_t index) const {
    for (const torch::nn::Module* module : awaiting_[index]) await_parameters(*module);
  }

 private:
  // What ranks do not agree on is wrong input on all of them.
  WithoutGil<DataParallel> wrap(ProcessGroup group, DataParallelOptions options) {
    try {
      return WithoutGil<DataParallel>(new DataParallel(*mirror_, std::move(group), std::move(options)));
    } catch (const GroupError&) {
      throw;
    } catch (const RuntimeError& error) {
      throw InputError(error.what());
    }
  }

  std::shared_ptr<torch::nn::Module> mirror_;
  std::vector<std::vector<const torch::nn::Module*>> awaiting_;
  WithoutGil<DataParallel> ddp_;
};

// A bucket's parameters, by name, in order; a tensor in parts is in each of its buckets.
std::vector<std::vector<std::string>> bucket_names(Engine& engine) {
  const std::vector<std::string> names = engine.ddp().stats().tensors;
  std::vector<std::vector<std::string>> result;
  for (const Bucket& bucket : engine.ddp().plan().buckets) {
    result.emplace_back(names.begin() + bucket.first, names.begin() + bucket.first + bucket.count);
  }
  return result;
}

class EngineOptimizer {
 public:
  EngineOptimizer(Engine& engine, py::object optimizer)
      : optimizer_(wrap_optimizer(std::move(optimizer))), overlapped_(new OverlappedOptimizer(engine.ddp(), *optimizer_)) {}
  OverlappedOptimizer& overlapped() { return *overlapped_; }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  WithoutGil<OverlappedOptimizer> overlapped_;
};

class EngineShardedOptimizer {
 public:
  // make: of the (name, part) of every trained parameter, a Python optimiser of parts.
  EngineShardedOptimizer(Engine& engine, const py::function& make)
      : sharded_(new ShardedOptimizer(engine.ddp(), [&make](const std::vector<NamedTensor>& parts) {
          py::list named;
          for (const NamedTensor& part : parts) named.append(py::make_tuple(part.name, part.tensor));
          return wrap_optimizer(make(named));
        })) {}
  ShardedOptimizer& sharded() { return *sharded_; }

 private:
  WithoutGil<ShardedOptimizer> sharded_;
};

void bind_stats(py::module_& module) {
  py::enum_<AutomaticPhase>(module, "AutomaticPhase", "How far buckets=\"automatic\" has come.")
      .value("WARM_UP", AutomaticPhase::kWarmUp)
      .value("PROFILING", AutomaticPhase::kProfiling)
      .value("MEASURING", AutomaticPhase::kMeasuring)
      .value("TRYING", AutomaticPhase::kTrying)
      .value("SETTLED", AutomaticPhase::kSettled);
  py::class_<BucketStats>(module, "BucketStats", "One bucket in the last step. Seconds since the first gradient of the step was ready.")
      .def_readonly("tensors", &BucketStats::tensors)
      .def_readonly("bytes", &BucketStats::bytes, "of the gradients in it")
      .def_readonly("bytes_on_wire", &BucketStats::bytes_on_wire, "that this rank hands to the collective")
      .def_readonly("launch_s", &BucketStats::launch_s)
      .def_readonly("end_s", &BucketStats::end_s, "its sum was complete on this rank");
  py::class_<DataParallelStats>(module, "DataParallelStats", "Of the last finished step.")
      .def_readonly("buckets", &DataParallelStats::buckets, "in launch order")
      .def_readonly("exposed_wait_s", &DataParallelStats::exposed_wait_s, "from the end of backward to the end of the step")
      .def_readonly("steps", &DataParallelStats::steps, "finished without an error")
      .def_readonly("forward_wait_s", &DataParallelStats::forward_wait_s, "strategies ordered, sharded: that forward waited for parameters")
      .def_readonly("awaited_bytes", &DataParallelStats::awaited_bytes, "strategies ordered, sharded: that a step may leave on their way")
      .def_readonly("automatic", &DataParallelStats::automatic, "how far automatic buckets have come; None without");
}

void bind_engine(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(module, "Engine")
      .def(py::init([](const NamedTensors& parameters, const NamedTensors& buffers, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       double timeout_s, const std::optional<std::string>& link, const py::kwargs& given) {
             DataParallelOptions options = data_parallel_options(given);
             const py::gil_scoped_release released;
             return std::make_unique<Engine>(parameters, buffers, group, timeout_s, link, std::move(options));
           }),
           py::arg("parameters"), py::arg("buffers"), py::arg("group"), py::arg("timeout_s"), py::arg("link"))
      .def(
          "finish", [](Engine& engine) { engine.ddp().finish_gradient_synchronization(); }, Released())
      .def(
          "set_gradient_synchronization", [](Engine& engine, bool on) { return engine.ddp().set_gradient_synchronization(on); }, Released())
      .def(
          "abandon", [](Engine& engine, const std::string& reason) { engine.ddp().abandon_step(reason); }, Released())
      .def(
          "drain", [](Engine& engine) { engine.ddp().drain(); }, Released())
      .def("add_awaiting", &Engine::add_awaiting)
      .def("await_module", &Engine::await_module, Released())
      .def("join",
           [](Engine& engine, const py::function& step) {
             const py::gil_scoped_release released;
             engine.ddp().join().finish([&] {
               const py::gil_scoped_acquire gil;
               step();
             });
           })
      .def(
          "stats", [](Engine& engine) { return engine.ddp().stats(); }, Released())
      .def("bucket_names", &bucket_names, Released());
  py::class_<EngineOptimizer>(module, "EngineOptimizer")
      .def(py::init<Engine&, py::object>(), py::keep_alive<1, 2>())
      .def(
          "step", [](EngineOptimizer& optimizer) { optimizer.overlapped().step(); }, Released())
      .def(
          "drain", [](EngineOptimizer& optimizer) { optimizer.overlapped().drain(); }, Released())
      .def(
          "clip_gradients", [](EngineOptimizer& optimizer, double max_norm) { return optimizer.overlapped().clip_gradients(max_norm); },
          Released());
  py::class_<EngineShardedOptimizer>(module, "EngineShardedOptimizer")
      .def(py::init<Engine&, const py::function&>(), py::keep_alive<1, 2>())
      .def(
          "step", [](EngineShardedOptimizer& optimizer) { optimizer.sharded().step(); }, Released())
      .def(
          "clip_gradients", [](EngineShardedOptimizer& optimizer, double max_norm) { return optimizer.sharded().clip_gradients(max_norm); },
          Released());
}

// ---- Errors.

void raise(const char* module, const char* type, const py::object& argument) {
  PyErr_SetObject(py::module_::import(module).attr(type).ptr(), argument.ptr());
}

// Sets Python's error. False for an error that is none of ours. The GIL is held.
bool set_error(std::exception_ptr error) {
  try {
    std::rethrow_exception(std::move(error));
  } catch (const InputError& input) {
    raise("firkin._core", "InputError", py::str(input.what()));
  } catch (const StepError& step) {
    const StepFailure& failure = step.failure();
    raise("firkin._native", "StepError", py::make_tuple(step.what(), failure.rank, failure.step, failure.reason));
  } catch (const GroupError& group) {
    raise("firkin._native", "GroupError", py::str(group.what()));
  } catch (...) {
    return false;
  }
  return true;
}

// Autograd passes on an error of Python's as it is.
void throw_as_pythons() {
  const py::gil_scoped_acquire gil;
  if (!set_error(std::current_exception())) return;
  python_error error;
  error.persist();
  throw error;
}

// firkin.InputError, firkin.StepError and firkin.GroupError for the errors of those names, out of calls and out of backward().
void translate_errors() {
  set_autograd_error_translation(throw_as_pythons);
  py::register_exception_translator([](std::exception_ptr error) {
    if (error != nullptr && !set_error(error)) std::rethrow_exception(error);
  });
}

}  // namespace
}  // namespace firkin::python

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  firkin::python::translate_errors();
  firkin::python::bind_stats(module);
  firkin::python::bind_engine(module);
}
