// The module firkin._core: planning, statistics and reports, without LibTorch. Here what is planned with: Profile, AllReduceTable,
// predict(). Docstrings say units; errors are firkin.InputError unless they say otherwise.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <numeric>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/prediction.h"
#include "firkin/stats/summary.h"
#include "report/report.h"
#include "results/results.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

// ---- Profile: when each gradient becomes ready.

ProfileSection make_profile(std::vector<std::string> names, std::vector<int64_t> bytes, std::vector<double> ready_s,
                            std::optional<double> backward_s, std::optional<double> bare_backward_s) {
  ProfileSection profile;
  const double last_s = ready_s.empty() ? 0 : ready_s.back();
  profile.tensors = {
      .names = std::move(names), .bytes = std::move(bytes), .ready_s = std::move(ready_s), .backward_s = backward_s.value_or(last_s)};
  check_profile(profile.tensors);
  profile.bare_backward_s = bare_backward_s;
  return profile;
}

// Rows of equal length: one of each step, the end of backward and then a ready time per tensor.
ProfileSection profile_of_samples(std::vector<std::string> names, std::vector<int64_t> bytes,
                                  const std::vector<std::vector<double>>& hooked_s, const std::vector<double>& bare_s) {
  const std::vector<double> medians = column_medians(hooked_s);
  ProfileSection profile;
  profile.tensors.names = std::move(names);
  profile.tensors.bytes = std::move(bytes);
  double latest_s = 0;
  for (size_t i = 1; i < medians.size(); ++i) {
    latest_s = std::max(latest_s, medians[i]);
    profile.tensors.ready_s.push_back(latest_s);
  }
  profile.tensors.backward_s = std::max(latest_s, medians[0]);
  check_profile(profile.tensors);
  std::vector<double> backward_s;
  for (const std::vector<double>& row : hooked_s) backward_s.push_back(row[0]);
  add_bare_backward(backward_s, bare_s, profile);
  return profile;
}

std::string describe(const ProfileSection& profile) {
  const TensorProfile& tensors = profile.tensors;
  const int64_t total = tensors.total_bytes();
  return fmt::format("Profile({} tensors, {}, backward {})", tensors.names.size(), format_bytes(total), format_seconds(tensors.backward_s));
}

void bind_profile(nb::module_& module) {
  nb::class_<ProfileSection>(module, "Profile",
                             "When each gradient becomes ready in the backward pass.\n\n"
                             "Tensors are in gradient-ready order; times are seconds from the start of backward and do not decrease.")
      .def(
          "__init__",
          [](ProfileSection* self, std::vector<std::string> names, std::vector<int64_t> bytes, std::vector<double> ready_s,
             std::optional<double> backward_s, std::optional<double> bare_backward_s) {
            new (self) ProfileSection(make_profile(std::move(names), std::move(bytes), std::move(ready_s), backward_s, bare_backward_s));
          },
          "names"_a, "bytes"_a, "ready_s"_a, "backward_s"_a = nb::none(), "bare_backward_s"_a = nb::none(),
          "names: distinct; bytes: of each gradient; backward_s: the end of backward, by default the last ready time.\n"
          "Raises InputError where lengths differ, a name repeats, or a time is negative or smaller than the one before.")
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return ProfileSection{.tensors = read_tensors_csv(path)}; }, "path"_a,
          "Reads a tensors.csv (name,bytes,ready_s); backward_s becomes the last ready time. Raises InputError with file and line.")
      .def(
          "write_csv", [](const ProfileSection& self, const std::filesystem::path& path) { write_tensors_csv(path, self.tensors); },
          "path"_a, "Writes a tensors.csv, whole or not at all. It does not hold the end of backward.")
      .def_prop_ro(
          "names", [](const ProfileSection& self) { return self.tensors.names; }, "Of the parameters, in gradient-ready order.")
      .def_prop_ro(
          "bytes", [](const ProfileSection& self) { return self.tensors.bytes; }, "Of each gradient.")
      .def_prop_ro(
          "ready_s", [](const ProfileSection& self) { return self.tensors.ready_s; }, "Seconds from the start of backward.")
      .def_prop_ro(
          "backward_s", [](const ProfileSection& self) { return self.tensors.backward_s; },
          "Seconds of the backward pass without communication, with the hooks that looked on.")
      .def_ro("bare_backward_s", &ProfileSection::bare_backward_s, "Seconds of the backward pass without hooks; None: not measured.")
      .def_ro("hook_perturbation", &ProfileSection::hook_perturbation,
              "What looking on cost, as a fraction of the bare backward; None: not measured.")
      .def("__len__", [](const ProfileSection& self) { return self.tensors.names.size(); })
      .def("__repr__", &describe);
  module.def(
      "profile_of_samples", &profile_of_samples, "names"_a, "bytes"_a, "hooked_s"_a, "bare_s"_a,
      "Medians over steps, made non-decreasing. Tensors are in gradient-ready order. hooked_s: per step the end of backward, then the\n"
      "ready time of each tensor; bare_s: per step the end of backward without hooks; seconds.");
}

// ---- AllReduceTable: measured all-reduce times.

AllReduceRow measured_row(int64_t bytes, int64_t world_size, const std::vector<double>& isolated_s, const std::vector<double>& queued_s,
                          int64_t queue, int64_t calls_per_sample, int64_t wrong) {
  std::vector<double> gap_s;
  for (const double total_s : queued_s) gap_s.push_back(queued_gap_s(total_s, median(isolated_s), static_cast<double>(queue)));
  AllReduceRow row = row_of_samples(bytes, world_size, isolated_s, gap_s);
  row.calls_per_sample = calls_per_sample;
  row.wrong = wrong;
  return row;
}

AllReduceRow plain_row(int64_t bytes, int64_t world_size, double median_s, std::optional<double> gap_s) {
  if (bytes < 1) throw InputError(fmt::format("an all-reduce of {} bytes; expected at least 1", bytes));
  if (world_size < 1) throw InputError(fmt::format("an all-reduce of {} ranks; expected at least 1", world_size));
  for (const double seconds : {median_s, gap_s.value_or(median_s)}) {
    if (const char* expected = expected_of_measured(seconds)) {
      throw InputError(fmt::format("an all-reduce takes {} s; expected {}", seconds, expected));
    }
  }
  return {.bytes = bytes, .world_size = world_size, .median_s = median_s, .gap_s = gap_s};
}

void bind_row(nb::module_& module) {
  nb::class_<AllReduceRow>(module, "AllReduceRow", "One size at one world size; seconds per call.")
      .def(
          "__init__",
          [](AllReduceRow* self, int64_t bytes, int64_t world_size, double median_s, std::optional<double> gap_s) {
            new (self) AllReduceRow(plain_row(bytes, world_size, median_s, gap_s));
          },
          "bytes"_a, "world_size"_a, "median_s"_a, "gap_s"_a = nb::none())
      .def_ro("bytes", &AllReduceRow::bytes)
      .def_ro("world_size", &AllReduceRow::world_size)
      .def_ro("median_s", &AllReduceRow::median_s, "Of calls one at a time.")
      .def_ro("gap_s", &AllReduceRow::gap_s, "Of calls queued back to back; None: not measured.")
      .def_ro("samples", &AllReduceRow::samples)
      .def_ro("wrong", &AllReduceRow::wrong, "Elements of checked results that were not the sum over the ranks; None: not checked.");
}

void bind_allreduce(nb::module_& module) {
  bind_row(module);
  nb::class_<MeasuredAllReduce>(module, "AllReduceTable",
                                "Measured all-reduce times by size: a(x), one call at a time, and g(x), queued back to back.")
      .def(nb::init<AllReduceTable>(), "rows"_a)
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return MeasuredAllReduce{read_allreduce_csv(path)}; }, "path"_a,
          "Reads an allreduce.csv (bytes,world_size,median_s,gap_s,...; `firkin import` makes one of nccl-tests' output). Raises "
          "InputError\n"
          "with file and line.")
      .def(
          "write_csv", [](const MeasuredAllReduce& self, const std::filesystem::path& path) { write_allreduce_csv(path, self.rows); },
          "path"_a, "Writes an allreduce.csv, whole or not at all.")
      .def_ro("rows", &MeasuredAllReduce::rows)
      .def_prop_ro(
          "world_sizes", [](const MeasuredAllReduce& self) { return world_sizes(self.rows); }, "Ascending.")
      .def("__len__", [](const MeasuredAllReduce& self) { return self.rows.size(); })
      .def("__repr__", [](const MeasuredAllReduce& self) {
        return fmt::format("AllReduceTable({} sizes, ranks: {})", self.rows.size(), fmt::join(world_sizes(self.rows), ", "));
      });
  module.def("allreduce_sizes", &allreduce_sizes, "largest_bytes"_a, "4 B, 16 B, ... up to `largest_bytes`, which is always the last.");
  module.def("row_of_samples", &measured_row, "bytes"_a, "world_size"_a, "isolated_s"_a, "queued_s"_a, "queue"_a, "calls_per_sample"_a,
             "wrong"_a,
             "Medians and moments. isolated_s: seconds per call, one at a time; queued_s: seconds of `queue` calls under way together, "
             "empty: not\n"
             "measured.");
}

// ---- predict() and assign_buckets().

int64_t chosen_world(const MeasuredAllReduce& table, std::optional<int64_t> wanted) {
  if (wanted) return *wanted;
  const std::vector<int64_t> worlds = world_sizes(table.rows);
  if (worlds.size() == 1) return worlds[0];
  throw InputError(
      fmt::format("world_size: the table has {}; expected one of them, or another to extrapolate to", fmt::join(worlds, ", ")));
}

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
                            std::optional<double> first_cap_mib, double overhead_s, double compute_slowdown, double comm_slowdown,
                            double latency_factor, std::optional<double> residual, bool sensitivity) {
  PredictionInputs inputs{.profile = profile.tensors,
                          .table = curve.rows,
                          .world_size = chosen_world(curve, world_size),
                          .ranks_per_node = ranks_per_node.value_or(0)};
  inputs.rule = cap_options(1, rule, first_cap_mib);
  inputs.search.simulation = {overhead_s, compute_slowdown, comm_slowdown};
  inputs.latency_factor = latency_factor;
  inputs.residual = residual;
  inputs.sensitivity = sensitivity;
  check_options(inputs.search.simulation);
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
      "predict", &predict_workload, "profile"_a, "curve"_a, nb::kw_only(), "world_size"_a = nb::none(), "ranks_per_node"_a = nb::none(),
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

}  // namespace
}  // namespace firkin::python

NB_MODULE(_core, module) {
  module.doc() = "Planning, statistics and reports, without PyTorch.";
  module.attr("version") = FIRKIN_VERSION;
  const auto input_error = nb::exception<firkin::InputError>(module, "InputError", PyExc_ValueError);
  input_error.attr("__doc__") = "Wrong input, in one line: where, what, what was expected. A ValueError.";
  firkin::python::bind_profile(module);
  firkin::python::bind_allreduce(module);
  firkin::python::bind_prediction(module);
  firkin::python::bind_tuning(module);
}
