// predict() and assign_buckets().
#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <numeric>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/prediction.h"
#include "report/report.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

std::vector<std::vector<int64_t>> assigned_buckets(const std::vector<int64_t>& sizes, double cap_mib, const std::string& rule,
                                                   std::optional<double> first_cap_mib) {
  std::vector<std::vector<int64_t>> buckets;
  for (const Bucket& bucket : assign_buckets(sizes, cap_options(cap_mib, rule, first_cap_mib)).buckets) {
    buckets.emplace_back(static_cast<size_t>(bucket.count));
    std::iota(buckets.back().begin(), buckets.back().end(), bucket.first);
  }
  return buckets;
}

Prediction predict_workload(const ProfileSection& profile, const MeasuredAllReduce& curve, std::optional<int64_t> world_size,
                            std::optional<int64_t> ranks_per_node, const std::vector<double>& caps_mib, const std::string& rule,
                            std::optional<double> first_cap_mib, const SimulationOptions& simulation, double latency_factor,
                            std::optional<double> residual, bool sensitivity) {
  PredictionInputs inputs{.profile = profile.tensors,
                          .table = curve.rows,
                          .world_size = chosen_world(curve, world_size),
                          .ranks_per_node = ranks_per_node.value_or(0)};
  inputs.rule = cap_options(1, rule, first_cap_mib);
  inputs.search.simulation = simulation;
  inputs.latency_factor = latency_factor;
  inputs.residual = residual;
  inputs.sensitivity = sensitivity;
  check_options(simulation);
  for (const double mib : caps_mib) inputs.caps.push_back(bytes_from_mib(mib, "caps_mib"));
  return predict(std::move(inputs));
}

Results results_of(const Prediction& prediction) {
  Results results;
  results.run = begin_head("predict");
  results.prediction = prediction;
  return results;
}

std::optional<std::vector<double>> plan_caps(const PredictedPlan& plan) {
  if (!plan.pytorch.reproduces_plan) return std::nullopt;
  return plan.pytorch.mib;
}

void bind_points(nb::module_& module) {
  nb::class_<PredictedBucketing>(module, "PredictedCap", "One uniform bucket cap, predicted. Seconds of backward with its communication.")
      .def_prop_ro("cap_mib", [](const PredictedBucketing& self) { return mib(self.cap_bytes.value_or(0)); })
      .def_ro("buckets", &PredictedBucketing::buckets, "How many.")
      .def_ro("backward_s", &PredictedBucketing::backward_s)
      .def_ro("exposed_s", &PredictedBucketing::exposed_s, "What communication adds to backward.")
      .def_ro("regret", &PredictedBucketing::regret, "Over the best plan's time, less 1.")
      .def("__repr__", [](const PredictedBucketing& self) {
        return fmt::format("PredictedCap({:.6g} MiB, {} buckets, backward {})", mib(self.cap_bytes.value_or(0)), self.buckets,
                           format_seconds(self.backward_s));
      });
  nb::class_<PredictedPlan>(module, "PredictedPlan", "The best buckets of any sizes. Seconds of backward with its communication.")
      .def_prop_ro(
          "buckets",
          [](const PredictedPlan& self) {
            std::vector<std::vector<std::string>> buckets;
            for (const PredictedBucket& bucket : self.buckets) buckets.push_back(bucket.tensors);
            return buckets;
          },
          "Names of the parameters in each, in launch order.")
      .def_prop_ro(
          "bytes",
          [](const PredictedPlan& self) {
            std::vector<int64_t> bytes;
            for (const PredictedBucket& bucket : self.buckets) bytes.push_back(bucket.bytes);
            return bytes;
          },
          "Of each bucket.")
      .def_ro("backward_s", &PredictedPlan::backward_s)
      .def_ro("exposed_s", &PredictedPlan::exposed_s, "What communication adds to backward.")
      .def_ro("gain", &PredictedPlan::gain, "Over the best uniform cap, as a fraction of its time.")
      .def_ro("exact", &PredictedPlan::exact, "Whether no other plan is better; else the best that a local search found.")
      .def_prop_ro("bucket_cap_mb_list", &plan_caps,
                   "PyTorch's argument that makes these buckets (2.13 and later); None where there is none.");
}

}  // namespace

CapOptions cap_options(double cap_mib, const std::string& rule, std::optional<double> first_cap_mib) {
  CapOptions options{.cap_bytes = bytes_from_mib(cap_mib, "cap_mib")};
  if (rule == name_of(CapRule::kAtMost)) {
    options.rule = CapRule::kAtMost;
  } else if (rule != name_of(CapRule::kCloseWhenFull)) {
    throw InputError(fmt::format("rule '{}'; expected close-when-full or at-most", rule));
  }
  if (first_cap_mib) options.first_cap_bytes = bytes_from_mib(*first_cap_mib, "first_cap_mib");
  return options;
}

void bind_prediction(nb::module_& module) {
  bind_points(module);
  nb::class_<Prediction>(module, "Prediction", "Everything that the performance model says about one workload.")
      .def_prop_ro("world_size", [](const Prediction& self) { return self.workload.world_size; })
      .def_prop_ro(
          "backward_s", [](const Prediction& self) { return self.workload.backward_s; }, "Without communication.")
      .def_ro("curve", &Prediction::curve, "Over bucket caps, ascending.")
      .def_ro("best_cap", &Prediction::best_uniform, "The best of all uniform caps.")
      .def_ro("best_plan", &Prediction::best_plan)
      .def(
          "to_json", [](const Prediction& self) { return results_text(results_of(self)); },
          "All of it, as `firkin predict --json` prints it (docs/results.md).")
      .def(
          "report",
          [](const Prediction& self, const std::filesystem::path& path) { write_file_atomically(path, render_report(results_of(self))); },
          "path"_a, "Writes a page that opens without a network.")
      .def("__repr__", [](const Prediction& self) {
        return fmt::format("Prediction(best cap {:.6g} MiB: {}; best plan of {} buckets: {})", mib(self.best_uniform.cap_bytes.value_or(0)),
                           format_seconds(self.best_uniform.backward_s), self.best_plan.buckets.size(),
                           format_seconds(self.best_plan.backward_s));
      });
  module.def(
      "predict",
      [](const ProfileSection& profile, const MeasuredAllReduce& curve, std::optional<int64_t> world_size,
         std::optional<int64_t> ranks_per_node, const std::vector<double>& caps_mib, const std::string& rule,
         std::optional<double> first_cap_mib, double overhead_s, double compute_slowdown, double comm_slowdown, double latency_factor,
         std::optional<double> residual, bool sensitivity) {
        const SimulationOptions simulation{overhead_s, compute_slowdown, comm_slowdown};
        return predict_workload(profile, curve, world_size, ranks_per_node, caps_mib, rule, first_cap_mib, simulation, latency_factor,
                                residual, sensitivity);
      },
      "profile"_a, "curve"_a, nb::kw_only(), "world_size"_a = nb::none(), "ranks_per_node"_a = nb::none(),
      "caps_mib"_a = std::vector<double>{}, "rule"_a = "close-when-full", "first_cap_mib"_a = nb::none(), "overhead_s"_a = 0.0,
      "compute_slowdown"_a = 1.0, "comm_slowdown"_a = 1.0, "latency_factor"_a = 1.0, "residual"_a = nb::none(), "sensitivity"_a = false,
      nb::call_guard<nb::gil_scoped_release>(),
      "Backward time over bucket caps, the best cap and the best plan.\n\n"
      "world_size: ranks; extrapolated to when `curve` has other worlds only; by default the only one that it has.\n"
      "ranks_per_node: where known, worlds of several nodes are extrapolated to from such worlds only.\n"
      "caps_mib: of the curve, MiB; by default powers of two. rule: 'close-when-full' (PyTorch) or 'at-most' (a tensor that would exceed\n"
      "the cap starts a new bucket). first_cap_mib: of the first bucket.\n"
      "overhead_s: of a call, on the thread that runs backward.\n"
      "compute_slowdown, comm_slowdown: of each while the other runs, at least 1. latency_factor: of all-reduces beside backward.\n"
      "residual: of the calibration that these are from; None: not calibrated. "
      "sensitivity: 1/8 to 8 times each input as well.\n"
      "Raises InputError.");
  module.def("assign_buckets", &assigned_buckets, "sizes"_a, "cap_mib"_a = 25.0, "rule"_a = "close-when-full",
             "first_cap_mib"_a = nb::none(),
             "Groups gradients into buckets under a cap: for each bucket the indices into `sizes`.\n\n"
             "sizes: bytes of each gradient, in gradient-ready order. rule: 'close-when-full' (PyTorch: append, close once the cap is\n"
             "reached) or 'at-most' (a tensor that would exceed the cap starts a new bucket). Raises InputError.");
}

}  // namespace firkin::python
