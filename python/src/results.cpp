// What firkin.tune and a watch found, for firkin/_result.py and _watch.py: the structs of results/results.h, so that no
// document is written or edited in Python.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "core.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"
#include "firkin/plan/decision.h"
#include "firkin/plan/prediction.h"
#include "report/report.h"
#include "results/results.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

// A section that every result of firkin.tune has.
template <typename Section>
const Section& required(const std::optional<Section>& section, const char* name) {
  if (!section) throw InputError(fmt::format("results: {}: missing; expected the results of firkin.tune", name));
  return *section;
}

const Decision& decision_of(const Results& results) {
  return required(results.decision, "decision");
}

const TensorProfile& tensors_of(const Results& results) {
  return required(results.profile, "profile").tensors;
}

// Adds the facts of a run that only PyTorch knows.
void add_facts(Results& results, const std::vector<std::string>& command_line, const std::vector<std::string>& notes,
               const std::string& libtorch, const std::string& backend, const std::string& device, const std::optional<std::string>& link,
               const std::string& model, const std::string& dtype, int64_t parameters, int64_t tensors, int64_t gradient_bytes) {
  results.run.command_line = command_line;
  results.notes.insert(results.notes.begin(), notes.begin(), notes.end());
  results.run.environment.libtorch = libtorch;
  results.run.environment.backend = backend;
  results.run.environment.device = device;
  results.run.environment.link = link;
  results.run.model = {.name = model, .dtype = dtype, .parameters = parameters, .tensors = tensors, .gradient_bytes = gradient_bytes};
}

const StrategyRow& recommended(const Results& results) {
  const std::string& name = required(decision_of(results).recommended, "decision.recommended");
  const auto row = std::ranges::find(results.strategies, name, &StrategyRow::strategy);
  if (row == results.strategies.end())
    throw InputError(fmt::format("results: decision.recommended: {}; expected one of the strategies", name));
  return *row;
}

// PyTorch's step over the recommended one, with its 95 % interval.
std::tuple<double, double, double> speedup(const Results& results) {
  const std::optional<PairedRatio> gain = recommended_over_default(decision_of(results));
  if (!gain) return {1, 1, 1};
  return {1 / gain->ratio, 1 / gain->interval.high,
          gain->interval.low > 0 ? 1 / gain->interval.low : std::numeric_limits<double>::infinity()};
}

Prediction predict_for(const Results& results, int64_t world_size, const MeasuredAllReduce* curve) {
  PredictionInputs inputs{.profile = tensors_of(results),
                          .table = curve != nullptr ? curve->rows : results.allreduce,
                          .world_size = world_size,
                          .rule = {.rule = CapRule::kCloseWhenFull}};
  if (results.calibration) {
    const Calibration& fit = results.calibration->fit;
    inputs.search.simulation = fit.options;
    inputs.latency_factor = fit.latency_factor;
    inputs.residual = fit.residual;
  }
  return predict(std::move(inputs));
}

void write_run(const Results& results, const std::filesystem::path& folder, const std::string& tuned) {
  const std::vector<OutputFile> files = {
      {"tensors.csv", tensors_csv(tensors_of(results))}, {"allreduce.csv", allreduce_csv(results.allreduce)}, {"tuned.json", tuned}};
  const Results written = with_files(results, files);
  OutputFolder held(folder, "folder");
  held.set_aside(written.run.files);
  write_result(folder, written, files);
}

// The results of a watch: its lines, and per rank what it did in one step as (activity, from, to), in seconds.
Results watched(const std::vector<std::string>& lines, const std::string& libtorch, int64_t world_size,
                const std::vector<std::vector<std::tuple<std::string, double, double>>>& ranks) {
  Results results;
  results.run = begin_head("watch");
  results.run.environment.libtorch = libtorch;
  results.run.environment.world_size = world_size;
  results.notes = lines;
  for (const auto& periods : ranks) {
    TraceRow& row =
        results.traces.emplace_back(TraceRow{.strategy = "watched", .name = fmt::format("rank {}", results.traces.size()), .file = {}});
    for (const auto& [activity, start_s, end_s] : periods) row.timeline.push_back({activity, start_s, end_s});
  }
  return results;
}

}  // namespace

void bind_results(nb::module_& module) {
  module.def("check_output_folder", &check_output_folder, "folder"_a, "what"_a);
  nb::class_<Results>(module, "Results", "A results.json (docs/results.md) of firkin.tune, or of a watch.")
      .def_static(
          "parse", [](const std::string& text) { return parse_results(text, "results"); }, "text"_a,
          "The text of a results.json. Raises InputError for any other.")
      .def_static("watched", &watched, "lines"_a, "libtorch"_a, "world_size"_a, "ranks"_a,
                  "Of a watch. ranks: for each, what it did in one step as (activity, from, to), in seconds.")
      .def("to_json", &results_text, "The text of the results.json.")
      .def("add_facts", &add_facts, nb::kw_only(), "command_line"_a, "notes"_a, "libtorch"_a, "backend"_a, "device"_a, "link"_a, "model"_a,
           "dtype"_a, "parameters"_a, "tensors"_a, "gradient_bytes"_a,
           "Adds what only PyTorch knows of the run. notes: put before the others. link: a modelled one, or None.")
      .def_prop_ro("notes", [](const Results& self) { return self.notes; })
      .def_prop_ro("profile", [](const Results& self) { return required(self.profile, "profile"); })
      .def_prop_ro("curve", [](const Results& self) { return MeasuredAllReduce{self.allreduce}; })
      .def_prop_ro("world_size", [](const Results& self) { return required(self.run.environment.world_size, "environment.world_size"); })
      .def_prop_ro(
          "keeps_default", [](const Results& self) { return keeps_default(decision_of(self).outcome); },
          "Whether PyTorch's bucket size is recommended.")
      .def_prop_ro(
          "cap_mib", [](const Results& self) { return mib(decision_of(self).cap_bytes); }, "The best cap.")
      .def_prop_ro(
          "blocks", [](const Results& self) { return decision_of(self).blocks; }, "Those that measured the gain.")
      .def_prop_ro(
          "step_s", [](const Results& self) { return recommended(self).measured_s; }, "With what is recommended.")
      .def_prop_ro(
          "predicted_s", [](const Results& self) { return required(recommended(self).predicted_s, "predicted_s"); },
          "The prediction for step_s.")
      .def_prop_ro("speedup", &speedup, "Over PyTorch's default, and the ends of its 95 % interval.")
      .def("predict", &predict_for, "world_size"_a, "curve"_a.none() = nb::none(), nb::call_guard<nb::gil_scoped_release>(),
           "The calibrated prediction for another number of ranks. curve: all-reduce times to use in place of those that were measured.")
      .def("answer", &answer_in_text, "The answer in words.")
      .def("__str__", &results_in_text)
      .def(
          "report", [](const Results& self, const std::filesystem::path& path) { write_file_atomically(path, render_report(self)); },
          "path"_a, "Writes a page that opens without a network.")
      .def("write", &write_run, "folder"_a, "tuned"_a,
           "Writes results.json, report.html, tensors.csv, allreduce.csv, and `tuned` as tuned.json.");
}

}  // namespace firkin::python
