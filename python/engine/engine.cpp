// The module firkin._engine: DataParallel over the parameters and the process group of a Python program. It is built
// for one version of PyTorch, because PyTorch's C++ interfaces are not stable; firkin/_native.py refuses any other
// version.
#include <pybind11/functional.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ddp/backward_watch.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/comm/device.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/await_parameters.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/overlapped_optimizer.h"
#include "firkin/ddp/sharded_optimizer.h"
#include "linked_rank.h"
#include "mirror.h"
#include "optimizer.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/distributed/c10d/python_comm_hook.h>
#include <torch/extension.h>

namespace firkin::python {
namespace {

// compression: its name. hook: None, or a communication hook as (state, hook, name), which takes the compression's
// place.
GradientHook gradient_hook(const std::string& compression, const py::object& hook) {
  if (!hook.is_none()) {
    auto [state, call, name] = py::cast<std::tuple<py::object, py::object, std::string>>(hook);
    return comm_hook(std::move(name), std::make_shared<c10d::PythonCommHook>(std::move(state), std::move(call)));
  }
  if (compression == "none") return {};
  if (compression == "bf16") return bf16_compression();
  if (compression == "fp16") return fp16_compression();
  throw InputError("compression '" + compression + "'; expected none, bf16 or fp16");
}

// Converts the arguments of firkin.DistributedDataParallel, by name.
DataParallelOptions data_parallel_options(const py::kwargs& given) {
  DataParallelOptions result;
  result.strategy = find_strategy(py::cast<std::string>(given["strategy"]));
  result.cap.cap_bytes = bytes_from_mib(py::cast<double>(given["cap_mib"]), "DataParallel: cap_mib");
  if (const auto first_mib = py::cast<std::optional<double>>(given["first_cap_mib"])) {
    result.cap.first_cap_bytes = bytes_from_mib(*first_mib, "DataParallel: first_cap_mib");
  }
  // The number of tensors per bucket, in ready_order.
  if (const auto counts = py::cast<std::optional<std::vector<int64_t>>>(given["counts"])) {
    result.plan = plan_of_counts(*counts);
  }
  result.ready_order = py::cast<std::vector<int64_t>>(given["ready_order"]);
  result.gradient_hook = gradient_hook(py::cast<std::string>(given["compression"]), given["comm_hook"]);
  result.finish_with_backward = py::cast<bool>(given["finish_with_backward"]);
  result.find_unused_parameters = py::cast<bool>(given["find_unused_parameters"]);
  result.broadcast_buffers = py::cast<bool>(given["broadcast_buffers"]);
  result.audit_every = py::cast<int64_t>(given["audit_every"]);
  if (py::cast<bool>(given["automatic"])) {
    result.buckets = automatic({.log = py::cast<std::function<void(const std::string&)>>(given["log"])});
  }
  return result;
}

// Deletes an object without the GIL. A group's destructor waits for the group's threads, and one of them may wait for
// the GIL to release a Python object.
struct DeleteWithoutGil {
  template <class T>
  void operator()(T* object) const {
    const py::gil_scoped_release released;
    delete object;
  }
};
template <class T>
using WithoutGil = std::unique_ptr<T, DeleteWithoutGil>;

// The mirror of the Python module, and the modules in it by path. A base class, because it must exist before
// DataParallel.
struct Mirror {
  std::shared_ptr<MirroredModule> root;
  torch::OrderedDict<std::string, std::shared_ptr<torch::nn::Module>> parts = root->named_modules();
};

// Methods that may wait for other ranks run without the GIL. A Python optimiser acquires it again.
class Engine : private Mirror, public DataParallel {
 public:
  Engine(const NamedTensors& parameters, const NamedTensors& buffers, ProcessGroup group, DataParallelOptions options)
      : Mirror{std::make_shared<MirroredModule>(parameters, buffers)}, DataParallel(*root, std::move(group), std::move(options)) {}

  // Makes these the mirror's parameters, which the next step then follows. Call it between steps. Modules that await
  // their parameters must be added again.
  void follow(const NamedTensors& parameters) {
    drain();
    awaiting_.clear();
    root->hold(parameters);
    parts = root->named_modules();  // the old modules would keep the old parameters in memory
    DataParallel::add_hooks_to_others(parameters_in(*root));
  }
  // Whether the Python module has other modules or parameters than at record_module(), possibly for one forward only
  // (functional_call with parameters of another module).
  bool is_changed() const { return root->is_changed(); }
  // See DataParallel. The Python module may hold no parameter that has a hook.
  void add_hooks_to_others(const NamedTensors& parameters) {
    std::vector<NamedTensor> all;
    for (const auto& [name, tensor] : parameters) all.push_back({name, tensor});
    const py::gil_scoped_release released;
    DataParallel::add_hooks_to_others(all);
  }

  // Adds a Python module, by all of its paths, that is to await its parameters. Returns its index for await_module().
  size_t add_awaiting(const std::vector<std::string>& paths) {
    awaiting_.emplace_back();
    for (const std::string& path : paths) {
      // The mirror has no part for a module without parameters.
      if (const auto* part = parts.find(path)) awaiting_.back().push_back(part->get());
    }
    return awaiting_.size() - 1;
  }
  void await_module(size_t index) const {
    for (const torch::nn::Module* part : awaiting_[index]) await_parameters(*part);
  }
  // Waits like await_module(), for a caller that only reads the parameters.
  void receive_module(size_t index) {
    for (const torch::nn::Module* part : awaiting_[index]) receive_parameters(*part);
  }
  void hold_buffers(const NamedTensors& buffers) { root->hold_buffers(buffers); }
  void record_module(py::object read_module, const py::list& structure, const py::list& buffers, bool always_asks) {
    root->record_module(std::move(read_module), structure, buffers, always_asks);
  }
  // optimizer: a number of its own. Holds the GIL until the number is recorded, because several threads may call this.
  void count_optimizer_step(int64_t optimizer) {
    const void* const which = &*optimizers_.insert(optimizer).first;
    const py::gil_scoped_release released;
    DataParallel::count_optimizer_step(which);
  }
  // The names of each bucket's parameters, in order.
  std::vector<std::vector<std::string>> bucket_names() const {
    const std::vector<std::string> names = stats().tensors;
    std::vector<std::vector<std::string>> result;
    for (const Bucket& bucket : plan().buckets) {
      result.emplace_back(names.begin() + bucket.first, names.begin() + bucket.first + bucket.count);
    }
    return result;
  }

 private:
  std::vector<std::vector<const torch::nn::Module*>> awaiting_;
  std::set<int64_t> optimizers_;  // the numbers' addresses identify the optimisers
};

// timeout_s: the group's timeout. world: the number of ranks that the link is modelled for. Throws InputError on every
// rank if options differ.
WithoutGil<Engine> make_engine(const NamedTensors& parameters, const NamedTensors& buffers,
                               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const DataParallelOptions& options, double timeout_s,
                               const std::optional<std::string>& link, int64_t world) {
  const py::gil_scoped_release released;
  GroupOptions group_options;
  group_options.timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  if (link) group_options.link = parse_link(*link, world);
  ProcessGroup adopted = adopt_process_group(group, group_options);
  try {
    return WithoutGil<Engine>(new Engine(parameters, buffers, std::move(adopted), options));
  } catch (const GroupError&) {
    throw;
  } catch (const RuntimeError& error) {
    throw InputError(error.what());
  }
}

// tensors: a function that returns (name, tensor) pairs.
void audit_tensors(Engine& engine, py::object tensors) {
  engine.audit_tensors([held = hold(std::move(tensors))] {
    const py::gil_scoped_acquire gil;
    std::vector<NamedTensor> result;
    for (auto& [name, tensor] : py::cast<NamedTensors>((*held)())) result.push_back({name, tensor});
    return result;
  });
}

struct Wrapped {
  std::unique_ptr<torch::optim::Optimizer> wrapped;
};

class EngineOptimizer : private Wrapped, public OverlappedOptimizer {
 public:
  EngineOptimizer(Engine& engine, const py::object& optimizer, py::function step)
      : Wrapped{wrap_optimizer(optimizer, std::move(step))}, OverlappedOptimizer(engine, *wrapped) {}
};

// make: constructs a Python optimiser from the (name, part) pairs of all trained parameters, and returns it with its
// step().
WithoutGil<ShardedOptimizer> make_sharded_optimizer(Engine& engine, const py::function& make, bool whole_parameters) {
  const auto make_of_parts = [&make](const std::vector<NamedTensor>& parts) {
    py::list named;
    for (const NamedTensor& part : parts) named.append(py::make_tuple(part.name, part.tensor));
    auto [optimizer, step] = py::cast<std::tuple<py::object, py::function>>(make(named));
    return wrap_optimizer(optimizer, std::move(step));
  };
  return WithoutGil<ShardedOptimizer>(new ShardedOptimizer(engine, make_of_parts, {.whole_parameters = whole_parameters}));
}

// ---- Bindings.

int64_t nanoseconds(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

void bind_stats(py::module_& module) {
  py::enum_<AutomaticPhase>(module, "AutomaticPhase", "The phase of buckets=\"automatic\".")
      .value("WARM_UP", AutomaticPhase::kWarmUp)
      .value("PROFILING", AutomaticPhase::kProfiling)
      .value("MEASURING", AutomaticPhase::kMeasuring)
      .value("TRYING", AutomaticPhase::kTrying)
      .value("SETTLED", AutomaticPhase::kSettled);
  py::class_<BucketStats>(module, "BucketStats", "One bucket in the last step. Seconds since the first gradient of the step was ready.")
      .def_readonly("tensors", &BucketStats::tensors)
      .def_readonly("bytes", &BucketStats::bytes, "of its gradients")
      .def_readonly("bytes_on_wire", &BucketStats::bytes_on_wire, "that this rank passes to the collective")
      .def_readonly("launch_s", &BucketStats::launch_s)
      .def_readonly("end_s", &BucketStats::end_s, "when its sum was complete on this rank");
  py::class_<DataParallelStats>(module, "DataParallelStats", "Statistics of the last finished step.")
      .def_readonly("buckets", &DataParallelStats::buckets, "in launch order")
      .def_readonly("exposed_wait_s", &DataParallelStats::exposed_wait_s, "from the end of backward to the end of the step")
      .def_readonly("steps", &DataParallelStats::steps, "finished without an error")
      .def_readonly("tensors", &DataParallelStats::tensors, "parameter names, in bucket order")
      .def_property_readonly(
          "began_ns", [](const DataParallelStats& self) { return nanoseconds(self.began); },
          "its first gradient, as of time.perf_counter_ns()")
      .def_property_readonly(
          "ended_ns", [](const DataParallelStats& self) { return nanoseconds(self.ended); }, "its end")
      .def_readonly("forward_wait_s", &DataParallelStats::forward_wait_s,
                    "strategies ordered, sharded: seconds forward waited for parameters")
      .def_readonly("awaited_bytes", &DataParallelStats::awaited_bytes, "strategies ordered, sharded: bytes a step may leave in flight")
      .def_readonly("automatic", &DataParallelStats::automatic, "the phase of automatic buckets; None without");
}

void bind_engine(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<DataParallelOptions>(module, "Options").def(py::init(&data_parallel_options));
  py::class_<Engine, WithoutGil<Engine>>(module, "Engine")
      .def(py::init(&make_engine), py::arg("parameters"), py::arg("buffers"), py::arg("group"), py::arg("options"), py::arg("timeout_s"),
           py::arg("link"), py::arg("world"))
      .def("finish_gradient_synchronization", &Engine::finish_gradient_synchronization, Released())
      .def("set_gradient_synchronization", &Engine::set_gradient_synchronization, Released())
      .def(
          "abandon_step",
          [](Engine& engine, const std::string& reason, bool is_another) {
            if (!is_another) return engine.abandon_step(reason);
            try {
              throw std::runtime_error(reason);  // C++ does not see the exception that Python handles
            } catch (const std::runtime_error&) {
              engine.abandon_step(reason);
            }
          },
          Released())
      .def("follow", &Engine::follow, Released())
      .def("is_changed", &Engine::is_changed)
      .def("add_hooks_to_others", &Engine::add_hooks_to_others)
      .def("hold_buffers", &Engine::hold_buffers)
      .def("record_module", &Engine::record_module)
      .def("forget_module", [](Engine& engine) { engine.record_module(py::none(), py::list(), py::list(), false); })
      .def("count_optimizer_step", &Engine::count_optimizer_step)
      .def("parameters_changed", &Engine::parameters_changed, Released())
      .def("audit", &Engine::audit, Released())
      .def("audit_tensors", &audit_tensors)
      .def("drain", &Engine::drain, Released())
      .def("observe_steps", &Engine::observe_steps, Released())
      .def("is_hooked", [](const Engine& /*engine*/, const at::Tensor& parameter) { return is_hooked(parameter); })
      .def("add_awaiting", &Engine::add_awaiting)
      .def("await_module", &Engine::await_module, Released())
      .def("receive_module", &Engine::receive_module, Released())
      .def("join", &Engine::join, Released())
      .def("stats", &Engine::stats, Released())
      .def("bucket_names", &Engine::bucket_names, Released());
  py::class_<EngineOptimizer, WithoutGil<EngineOptimizer>>(module, "EngineOptimizer")
      .def(py::init<Engine&, py::object, py::function>(), py::keep_alive<1, 2>())
      .def("step", &EngineOptimizer::step, Released())
      .def("drain", &EngineOptimizer::drain, Released())
      .def("clip_gradients", &EngineOptimizer::clip_gradients, Released());
  py::class_<ShardedOptimizer, WithoutGil<ShardedOptimizer>>(module, "EngineShardedOptimizer")
      .def(py::init(&make_sharded_optimizer), py::keep_alive<1, 2>())
      .def("step", &ShardedOptimizer::step, Released())
      .def("clip_gradients", &ShardedOptimizer::clip_gradients, Released());
}

void bind_link(py::module_& module) {
  module.attr("has_cuda") = has_nccl();  // whether what needs CUDA's headers was built
  using Gpu = std::optional<c10::DeviceIndex>;
  const auto device_of = [](Gpu gpu) { return gpu ? std::optional(c10::Device(c10::kCUDA, *gpu)) : std::nullopt; };
  module.def("describe_link", [device_of](const std::string& text, int64_t world, Gpu gpu) {
    const ModelledLink link = parse_link(text, world);
    check_link(link, 1, device_of(gpu).value_or(c10::kCPU));
    return describe(link);
  });
  module.def("linked_rank",
             [device_of](const std::string& link, int64_t world, const c10::intrusive_ptr<c10d::Store>& store,
                         std::chrono::milliseconds timeout, Gpu gpu) -> c10::intrusive_ptr<c10d::Backend> {
               return c10::make_intrusive<LinkedRank>(parse_link(link, world), store, timeout, device_of(gpu));
             });
}

// ---- Errors.

void raise(const char* module, const char* type, const py::object& argument) {
  PyErr_SetObject(py::module_::import(module).attr(type).ptr(), argument.ptr());
}

// Sets Python's error indicator. Returns false if the error is neither Firkin's nor Python's. Needs the GIL.
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
  } catch (const AuditError& audit) {
    raise("firkin._native", "AuditError", py::str(audit.what()));
  } catch (py::error_already_set& python) {  // raised by a communication hook, or by what the module contains
    // Not by restore(), which may be called once: a failed step may throw the same exception again.
    PyErr_SetObject(python.type().ptr(), python.value().ptr());
  } catch (...) {
    return false;
  }
  return true;
}

// Throws the current error as PyTorch's python_error, which autograd passes on unchanged.
void throw_as_pythons() {
  const py::gil_scoped_acquire gil;
  if (!set_error(std::current_exception())) return;
  python_error error;
  error.persist();
  throw error;
}

// Lets Python see InputError, StepError, GroupError and AuditError as firkin's exceptions of these names, both from
// calls and from backward().
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
  firkin::python::bind_link(module);
}
