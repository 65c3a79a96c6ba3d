// The module firkin._engine: DataParallel over the parameters and the process group of a Python program. Built against one PyTorch, whose
// C++ interfaces are not stable: firkin/_native.py lets no other one load it.
#include <pybind11/functional.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/group_error.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "module_mirror.h"
#include "python_errors.h"
#include "python_optimizer.h"

#include <torch/extension.h>

namespace firkin::python {
namespace {

namespace py = pybind11;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// What firkin.DataParallel gives, in the units of the C++ options.
struct EngineOptions {
  std::string strategy;
  int64_t cap_bytes = 0;
  std::optional<int64_t> first_cap_bytes;
  std::optional<std::vector<int64_t>> counts;  // of the tensors of each bucket, over ready_order
  std::vector<int64_t> ready_order;
  std::string compression;
  bool finish_with_backward = true;
  bool find_unused_parameters = false;
  bool broadcast_buffers = true;
  double timeout_s = 0;
  std::optional<std::string> link;
  bool automatic = false;
  std::string plan_file;
  std::function<void(const std::string&)> log;
};

std::vector<NamedTensor> named(const NamedTensors& tensors) {
  std::vector<NamedTensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back({name, tensor});
  return result;
}

GradientHook gradient_hook(const std::string& compression) {
  if (compression == "none") return plain_all_reduce();
  if (compression == "bf16") return bf16_compression();
  if (compression == "fp16") return fp16_compression();
  throw InputError("compression '" + compression + "'; expected none, bf16 or fp16");
}

DataParallelOptions data_parallel_options(const EngineOptions& options) {
  DataParallelOptions result;
  result.strategy = find_strategy(options.strategy);
  if (result.strategy.shards) throw InputError("strategy sharded is for programs in C++ so far; expected bucketed or ordered");
  result.cap.cap_bytes = options.cap_bytes;
  result.cap.first_cap_bytes = options.first_cap_bytes;
  if (options.counts) {
    result.plan.emplace();
    int64_t first = 0;
    for (const int64_t count : *options.counts) {
      result.plan->buckets.push_back({first, count});
      first += count;
    }
  }
  result.ready_order = options.ready_order;
  result.gradient_hook = gradient_hook(options.compression);
  result.finish_with_backward = options.finish_with_backward;
  result.find_unused_parameters = options.find_unused_parameters;
  result.broadcast_buffers = options.broadcast_buffers;
  if (options.automatic) result.buckets = automatic({.plan_file = options.plan_file, .log = options.log});
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
  Engine(const NamedTensors& parameters, const NamedTensors& buffers, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
         const EngineOptions& options)
      : mirror_(mirror_module(named(parameters), named(buffers))) {
    GroupOptions group_options;
    group_options.timeout = std::chrono::milliseconds(static_cast<int64_t>(options.timeout_s * 1000));
    if (options.link) group_options.link = parse_link(*options.link, group->getSize());
    ProcessGroup adopted = adopt_process_group(group, group_options);
    ddp_ = wrap(std::move(adopted), data_parallel_options(options));
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

void bind_options(py::module_& module) {
  py::class_<EngineOptions>(module, "EngineOptions")
      .def(py::init<>())
      .def_readwrite("strategy", &EngineOptions::strategy)
      .def_readwrite("cap_bytes", &EngineOptions::cap_bytes)
      .def_readwrite("first_cap_bytes", &EngineOptions::first_cap_bytes)
      .def_readwrite("counts", &EngineOptions::counts)
      .def_readwrite("ready_order", &EngineOptions::ready_order)
      .def_readwrite("compression", &EngineOptions::compression)
      .def_readwrite("finish_with_backward", &EngineOptions::finish_with_backward)
      .def_readwrite("find_unused_parameters", &EngineOptions::find_unused_parameters)
      .def_readwrite("broadcast_buffers", &EngineOptions::broadcast_buffers)
      .def_readwrite("timeout_s", &EngineOptions::timeout_s)
      .def_readwrite("link", &EngineOptions::link)
      .def_readwrite("automatic", &EngineOptions::automatic)
      .def_readwrite("plan_file", &EngineOptions::plan_file)
      .def_readwrite("log", &EngineOptions::log);
}

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
      .def_readonly("forward_wait_s", &DataParallelStats::forward_wait_s, "strategy ordered: that forward waited for parameters")
      .def_readonly("awaited_bytes", &DataParallelStats::awaited_bytes, "strategy ordered: that a step may leave on their way")
      .def_readonly("automatic", &DataParallelStats::automatic, "how far automatic buckets have come; None without");
}

void bind_engine(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(module, "Engine")
      .def(py::init<const NamedTensors&, const NamedTensors&, const c10::intrusive_ptr<c10d::ProcessGroup>&, const EngineOptions&>(),
           Released())
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
}

}  // namespace
}  // namespace firkin::python

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  firkin::python::translate_errors();
  firkin::python::bind_options(module);
  firkin::python::bind_stats(module);
  firkin::python::bind_engine(module);
}
