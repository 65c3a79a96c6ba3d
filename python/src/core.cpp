// The module firkin._core: predictions and reports, without LibTorch; tuning.cpp has the rest. Docstrings say units;
// errors are firkin.InputError unless they say otherwise.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <numeric>
#include <utility>

#include "core.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/measurements.h"
#include "firkin/plan/prediction.h"
#include "firkin/plan/watched_steps.h"
#include "import/profiler_trace.h"
#include "measuring/steps.h"
#include "plan/watch_exchange.h"
#include "report/report.h"
#include "results/results.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

// ---- Profile: when each gradient becomes ready.

void init_profile(MeasuredProfile* self, std::vector<std::string> names, std::vector<int64_t> bytes, std::vector<double> ready_s,
                  std::optional<double> backward_s, std::optional<double> bare_backward_s) {
  MeasuredProfile profile;
  const double last_s = ready_s.empty() ? 0 : ready_s.back();
  profile.tensors = {
      .names = std::move(names), .bytes = std::move(bytes), .ready_s = std::move(ready_s), .backward_s = backward_s.value_or(last_s)};
  check_profile(profile.tensors);
  profile.bare_backward_s = bare_backward_s;
  new (self) MeasuredProfile(std::move(profile));
}

// The profile in torch.profiler's traces, and sentences about the run; parameters in order of registration, in bytes.
std::pair<MeasuredProfile, std::vector<std::string>> profile_of_traces(
    const std::vector<std::filesystem::path>& files, const std::optional<std::vector<std::pair<std::string, int64_t>>>& parameters) {
  std::optional<GradientSizes> sizes;
  if (parameters) {
    sizes = GradientSizes{.source = "parameters", .names = {}, .sizes = {}, .are_bytes = true};
    for (auto last = parameters->rbegin(); last != parameters->rend(); ++last) {
      sizes->names.push_back(last->first);
      sizes->sizes.push_back(last->second);
    }
  }
  ReadTrace read = read_traces(files, sizes);
  return {MeasuredProfile{.tensors = std::move(read.profile)}, std::move(read.run.findings)};
}

template <auto kMember>
const auto& of_tensors(const MeasuredProfile& self) {
  return self.tensors.*kMember;
}

void bind_profile(nb::module_& module) {
  nb::class_<MeasuredProfile>(module, "Profile",
                              "When each gradient becomes ready in the backward pass.\n\n"
                              "Tensors are in gradient-ready order; times are seconds from the start of backward and do not decrease.")
      .def("__init__", &init_profile, "names"_a, "bytes"_a, "ready_s"_a, "backward_s"_a = nb::none(), "bare_backward_s"_a = nb::none(),
           "names: distinct; bytes: of each gradient; backward_s: the end of backward, by default the last ready time.\n"
           "Raises InputError if lengths differ, a name repeats, or a time is negative or smaller than the one before.")
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return MeasuredProfile{.tensors = read_tensors_csv(path)}; }, "path"_a,
          "Reads a tensors.csv (name,bytes,ready_s); backward_s becomes the last ready time. Raises InputError with file and line.")
      .def(
          "write_csv", [](const MeasuredProfile& self, const std::filesystem::path& path) { write_tensors_csv(path, self.tensors); },
          "path"_a, "Writes a tensors.csv, whole or not at all. It does not hold the end of backward.")
      .def_prop_ro("names", &of_tensors<&TensorProfile::names>, "Parameter names, in gradient-ready order.")
      .def_prop_ro("bytes", &of_tensors<&TensorProfile::bytes>, "Bytes of each gradient.")
      .def_prop_ro("ready_s", &of_tensors<&TensorProfile::ready_s>, "When each gradient is ready, seconds from the start of backward.")
      .def_prop_ro("backward_s", &of_tensors<&TensorProfile::backward_s>,
                   "Seconds of the backward pass without communication, with the profiling hooks.")
      .def_ro("bare_backward_s", &MeasuredProfile::bare_backward_s, "Seconds of the backward pass without hooks; None: not measured.")
      .def_ro("hook_perturbation", &MeasuredProfile::hook_perturbation,
              "What the hooks cost, as a fraction of the bare backward; None: not measured.")
      .def("__len__", [](const MeasuredProfile& self) { return self.tensors.names.size(); })
      .def("__repr__", [](const MeasuredProfile& self) {
        return fmt::format("Profile({} tensors, {}, backward {})", self.tensors.names.size(), format_bytes(self.tensors.total_bytes()),
                           format_seconds(self.tensors.backward_s));
      });
  module.def("read_traces", &profile_of_traces, "files"_a, "parameters"_a.none(), nb::call_guard<nb::gil_scoped_release>(),
             "For firkin/_trace.py.");
  module.def(
      "profile_of_steps", &profile_of_steps, "names"_a, "bytes"_a, "order"_a, "hooked_s"_a, "bare_s"_a,
      "The profile of steps that were watched. order: indices of names and bytes, in gradient-ready order. hooked_s: for each step\n"
      "seconds until the end of backward, then until each was ready; bare_s: until the end of as many backward passes without hooks.");
}

// ---- AllReduceTable: measured all-reduce times.

void init_row(AllReduceRow* self, int64_t bytes, int64_t world_size, double median_s, std::optional<double> gap_s) {
  if (bytes < 1) throw InputError(fmt::format("an all-reduce of {} bytes; expected at least 1", bytes));
  if (world_size < 1) throw InputError(fmt::format("an all-reduce of {} ranks; expected at least 1", world_size));
  for (const double seconds : {median_s, gap_s.value_or(median_s)}) {
    if (const char* expected = expected_of_measured(seconds)) {
      throw InputError(fmt::format("an all-reduce takes {} s; expected {}", seconds, expected));
    }
  }
  new (self) AllReduceRow{.bytes = bytes, .world_size = world_size, .median_s = median_s, .gap_s = gap_s};
}

void bind_allreduce(nb::module_& module) {
  nb::class_<AllReduceRow>(module, "AllReduceRow", "One message size at one world size; seconds per call.")
      .def("__init__", &init_row, "bytes"_a, "world_size"_a, "median_s"_a, "gap_s"_a = nb::none())
      .def_ro("bytes", &AllReduceRow::bytes)
      .def_ro("world_size", &AllReduceRow::world_size)
      .def_ro("median_s", &AllReduceRow::median_s, "Median of calls one at a time.")
      .def_ro("gap_s", &AllReduceRow::gap_s, "Median of calls queued back to back; None: not measured.")
      .def_ro("samples", &AllReduceRow::samples)
      .def_ro("wrong", &AllReduceRow::wrong, "Elements that differed from the sum over the ranks; None: not checked.");
  nb::class_<MeasuredAllReduce>(module, "AllReduceTable",
                                "Measured all-reduce times by size: a(x), one call at a time, and g(x), queued back to back.")
      .def(nb::init<AllReduceTable>(), "rows"_a)
      .def_static(
          "read_csv", [](const std::filesystem::path& path) { return MeasuredAllReduce{read_allreduce_csv(path)}; }, "path"_a,
          "Reads an allreduce.csv (bytes,world_size,median_s,gap_s,...; `firkin import` makes one from nccl-tests' output).\n"
          "Raises InputError with file and line.")
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
}

// ---- predict() and assign_buckets().

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

std::vector<int64_t> bytes_of_caps(const std::vector<double>& caps_mib) {
  std::vector<int64_t> bytes;
  for (const double mib : caps_mib) bytes.push_back(bytes_from_mib(mib, "caps_mib"));
  return bytes;
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

Prediction predict_workload(const MeasuredProfile& profile, const MeasuredAllReduce& curve, std::optional<int64_t> world_size,
                            const std::vector<double>& caps_mib, const std::string& rule, std::optional<double> first_cap_mib,
                            double overhead_s, double compute_slowdown, double latency_factor, std::optional<double> residual,
                            bool sensitivity) {
  PredictionInputs inputs{.profile = profile.tensors, .table = curve.rows};
  inputs.world_size = world_size ? *world_size : only_world(curve.rows, "curve", "world_size");
  inputs.rule = cap_options(1, rule, first_cap_mib);
  inputs.search.simulation = {overhead_s, compute_slowdown};
  inputs.latency_factor = latency_factor;
  inputs.residual = residual;
  inputs.sensitivity = sensitivity;
  inputs.caps = bytes_of_caps(caps_mib);
  return predict(std::move(inputs));
}

Results results_of(const Prediction& prediction) {
  Results results;
  results.run = begin_head("predict");
  results.notes = notes_of(prediction);
  results.prediction = prediction;
  return results;
}

std::optional<std::vector<double>> caps_if_any(const PyTorchCaps& caps) {
  return caps.reproduces_plan ? std::optional(caps.bucket_cap_mb_list) : std::nullopt;
}

double cap_mib(const PredictedCap& cap) {
  return short_mib(cap.cap_bytes);
}

std::string cap_text(const PredictedCap& cap) {
  return cap.cap_bytes < kKiB ? format_bytes(cap.cap_bytes) : fmt::format("{:.6g} MiB", cap_mib(cap));
}

template <auto kMember>
auto of_each_bucket(const PredictedPlan& plan) {
  std::vector<std::decay_t<decltype(PredictedBucket().*kMember)>> list;
  for (const PredictedBucket& bucket : plan.buckets) list.push_back(bucket.*kMember);
  return list;
}

void bind_prediction(nb::module_& module) {
  nb::class_<PredictedCap>(module, "PredictedCap",
                           "The prediction for one uniform bucket cap. Times are seconds of backward with its communication.")
      .def_prop_ro("cap_mib", &cap_mib)
      .def_ro("buckets", &PredictedCap::buckets, "The number of buckets.")
      .def_ro("backward_s", &PredictedCap::time_s)
      .def_ro("exposed_s", &PredictedCap::exposed_s, "What communication adds to backward.")
      .def_ro("regret", &PredictedCap::regret, "Time over that of the best plan, less 1.")
      .def("__repr__", [](const PredictedCap& self) {
        return fmt::format("PredictedCap({}, {} buckets, backward {})", cap_text(self), self.buckets, format_seconds(self.time_s));
      });
  nb::class_<PredictedPlan>(module, "PredictedPlan", "The best buckets of any sizes. Times are seconds of backward with its communication.")
      .def_prop_ro("buckets", &of_each_bucket<&PredictedBucket::tensors>, "Names of the parameters in each, in launch order.")
      .def_prop_ro("bytes", &of_each_bucket<&PredictedBucket::bytes>, "Bytes of each bucket.")
      .def_ro("backward_s", &PredictedPlan::backward_s)
      .def_ro("exposed_s", &PredictedPlan::exposed_s, "What communication adds to backward.")
      .def_ro("gain", &PredictedPlan::gain, "Time saved over the best uniform cap, as a fraction.")
      .def_ro("exact", &PredictedPlan::exact, "True if no other plan is better; False: the best of a local search.")
      .def_prop_ro(
          "bucket_cap_mb_list", [](const PredictedPlan& self) { return caps_if_any(self.pytorch); },
          "PyTorch's argument that makes these buckets (2.13 and later); None if none does.");
  nb::class_<Prediction>(module, "Prediction", "What the performance model says about one workload.")
      .def_prop_ro("world_size", [](const Prediction& self) { return self.workload.world_size; })
      .def_prop_ro(
          "backward_s", [](const Prediction& self) { return self.workload.backward_s; }, "Seconds of backward without communication.")
      .def_ro("curve", &Prediction::curve, "One PredictedCap per cap, ascending.")
      .def_ro("best_cap", &Prediction::best_uniform, "The best of all uniform caps.")
      .def_ro("best_plan", &Prediction::best_plan)
      .def_prop_ro(
          "notes", [](const Prediction& self) { return notes_of(self); },
          "What table and profile cannot say, or may have in another unit; one line each.")
      .def(
          "to_json", [](const Prediction& self) { return results_text(results_of(self)); },
          "Everything, as `firkin predict --json` prints it (docs/results.md).")
      .def(
          "report",
          [](const Prediction& self, const std::filesystem::path& path) { write_file_atomically(path, render_report(results_of(self))); },
          "path"_a, "Writes a page that opens without a network.")
      .def("__str__", [](const Prediction& self) { return answer_in_text(results_of(self)); })
      .def("__repr__", [](const Prediction& self) {
        return fmt::format("Prediction(best cap {}: {}; best plan of {} buckets: {})", cap_text(self.best_uniform),
                           format_seconds(self.best_uniform.time_s), self.best_plan.buckets.size(),
                           format_seconds(self.best_plan.backward_s));
      });
  module.def(
      "predict", &predict_workload, "profile"_a, "curve"_a, nb::kw_only(), "world_size"_a = nb::none(),
      "caps_mib"_a = std::vector<double>{}, "rule"_a = "close-when-full", "first_cap_mib"_a = nb::none(), "overhead_s"_a = 0.0,
      "compute_slowdown"_a = 1.0, "latency_factor"_a = 1.0, "residual"_a = nb::none(), "sensitivity"_a = false,
      nb::call_guard<nb::gil_scoped_release>(),
      "Predicts backward time over bucket caps, the best cap and the best plan.\n\n"
      "world_size: number of ranks, extrapolated to if `curve` lacks it; by default the only one in `curve`.\n"
      "caps_mib: caps of the curve, MiB; by default powers of two. rule: 'close-when-full' (PyTorch) or 'at-most' (a tensor that would\n"
      "exceed the cap starts a new bucket). first_cap_mib: cap of the first bucket.\n"
      "overhead_s: cost per call on the thread that runs backward.\n"
      "compute_slowdown: of backward while an all-reduce runs, at least 1. latency_factor: all-reduce latency during backward over\n"
      "that of an idle link. residual: of the calibration they come from; None: not calibrated. sensitivity: also multiply each input by\n"
      "1/8 to 8.\n"
      "Raises InputError.");
}

void bind_buckets(nb::module_& module) {
  module.def("assign_buckets", &assigned_buckets, "sizes"_a, "cap_mib"_a = 25.0, "rule"_a = "close-when-full",
             "first_cap_mib"_a = nb::none(),
             "Groups gradients into buckets under a cap; returns the indices into `sizes` of each bucket.\n\n"
             "sizes: bytes of each gradient, in gradient-ready order. rule: 'close-when-full' (PyTorch: append, close once the cap is\n"
             "reached) or 'at-most' (a tensor that would exceed the cap starts a new bucket). Raises InputError.");
  module.def(
      "caps_of_counts",
      [](const std::vector<int64_t>& counts, const std::vector<int64_t>& sizes) {
        const BucketPlan plan = plan_of_counts(counts);
        check_plan(plan, std::ssize(sizes));
        return caps_if_any(pytorch_caps(plan, sizes));
      },
      "counts"_a, "sizes"_a, "MiB for each bucket; None where PyTorch's rule cannot make these buckets.");
}

// ---- Watching, for firkin/_watch.py.

// The cap with the best prediction for watched steps: a line that says it, and its figures.
std::pair<std::string, std::map<std::string, double>> best_watched_cap(const MeasuredProfile& profile, const MeasuredAllReduce& table,
                                                                       int64_t world_size, double none_step_s,
                                                                       const std::vector<int64_t>& counts_in_use) {
  const TensorProfile& tensors = profile.tensors;
  const CommCosts costs = comm_costs(table.rows, world_size);
  const StepModel model{
      .profile = tensors, .costs = costs, .simulation = {}, .none_step_s = none_step_s, .bare_backward_s = tensors.backward_s};
  const CapOptions rule{.rule = CapRule::kCloseWhenFull};
  const BucketPlan in_use = plan_of_counts(counts_in_use);
  const double in_use_s = predict_step(model, in_use);
  const std::vector<PredictedCap> caps = caps_to_race(model, rule, {});
  const PredictedCap& best = caps[weigh(caps).choice];
  const bool is_in_use = assign_buckets(tensors.bytes, with_cap(rule, best.cap_bytes)) == in_use;
  return {fmt::format("  predicted best: bucket_cap_mb={:.6g}, {} a step ({} to {}); {}\n", mib(best.cap_bytes),
                      format_seconds(best.time_s), format_seconds(best.low_s), format_seconds(best.high_s),
                      is_in_use ? "it makes the buckets in use" : "those in use: " + format_seconds(in_use_s)),
          {{"cap_mib", short_mib(best.cap_bytes)},
           {"step_s", best.time_s},
           {"low_s", best.low_s},
           {"high_s", best.high_s},
           {"in_use_s", in_use_s}}};
}

void bind_watching(nb::module_& module) {
  module.attr("WORTH_TUNING") = kWorthTuning;
  nb::class_<WatchExchange>(module, "WatchExchange", "How the ranks of a watch tell rank 0 of their steps: src/plan/watch_exchange.h.")
      .def(nb::init<int64_t, int64_t, int64_t>(), "number"_a, "rank"_a, "size"_a)
      .def("end_window", &WatchExchange::end_window, "text"_a)
      .def("collect", &WatchExchange::collect, "has"_a, "get"_a)
      .def_prop_ro("windows", &WatchExchange::windows)
      .def_prop_ro("is_collecting", &WatchExchange::is_collecting)
      .def_prop_ro("missed", &WatchExchange::missed)
      .def_prop_ro("texts", &WatchExchange::texts);
  module.def(
      "watched_summary",
      [](const std::vector<std::string>& texts) {
        std::vector<RankSteps> ranks;
        for (const std::string& text : texts) ranks.push_back(parse_rank_steps(text));
        return summary_text(summarize(ranks));
      },
      "texts"_a, nb::call_guard<nb::gil_scoped_release>(), "JSON of include/firkin/plan/watched_steps.h: from that of every rank.");
  module.def("best_watched_cap", &best_watched_cap, "profile"_a, "table"_a, "world_size"_a, "none_step_s"_a, "counts_in_use"_a);
}

}  // namespace
}  // namespace firkin::python

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);  // what modules still hold when Python ends is no leak
  module.doc() = "Planning, statistics and reports, without PyTorch.";
  module.attr("version") = FIRKIN_VERSION;
  const auto input_error = nb::exception<firkin::InputError>(module, "InputError", PyExc_ValueError);
  input_error.attr("__doc__") = "Wrong input, in one line: where, what, and what was expected. A ValueError.";
  firkin::python::bind_profile(module);
  firkin::python::bind_allreduce(module);
  firkin::python::bind_prediction(module);
  firkin::python::bind_buckets(module);
  firkin::python::bind_tuning(module);
  firkin::python::bind_watching(module);
  firkin::python::bind_results(module);
}
