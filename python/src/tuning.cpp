// Tuner, and the page and the settings that follow from its results.
#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cctype>
#include <tuple>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/output_folder.h"
#include "firkin/base/units.h"
#include "firkin/plan/pytorch_caps.h"
#include "report/report.h"
#include "report/result_folder.h"
#include "report/text.h"
#include "results/paste_settings.h"
#include "tuner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

// Tensors per bucket, in gradient-ready order.
std::vector<int64_t> counts_of(const BucketPlan& plan) {
  std::vector<int64_t> counts;
  for (const Bucket& bucket : plan.buckets) counts.push_back(bucket.count);
  return counts;
}

// MiB for each bucket; None where PyTorch's rule cannot make these buckets.
std::optional<std::vector<double>> caps_of_counts(const std::vector<int64_t>& counts, const std::vector<int64_t>& sizes) {
  BucketPlan plan;
  int64_t first = 0;
  for (const int64_t count : counts) {
    plan.buckets.push_back({first, count});
    first += count;
  }
  check_plan(plan, static_cast<int64_t>(sizes.size()));
  const PyTorchCaps caps = pytorch_caps(plan, sizes);
  if (!caps.reproduces_plan) return std::nullopt;
  return caps.mib;
}

std::vector<std::pair<std::string, std::string>> settings_to_paste(double cap_mib, int64_t element_bytes,
                                                                   const std::vector<double>& plan_caps_mib) {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const PasteSetting& setting : paste_settings(bytes_from_mib(cap_mib, "cap_mib"), element_bytes, plan_caps_mib)) {
    std::string tool = setting.tool;
    std::ranges::transform(tool, tool.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    settings.emplace_back(tool, setting.setting);
  }
  return settings;
}

// What only Python knows of a run.
struct RunFacts {
  std::string model, dtype, torch, backend, device;
  int64_t parameters = 0;
  std::vector<std::string> command_line, notes;
};

std::string results_of(const Tuner& tuner, const RunFacts& facts, const ProfileSection& profile, int64_t world_size) {
  Results results;
  results.run = begin_head("tune");
  results.run.command_line = facts.command_line;
  Environment& environment = results.run.environment;
  environment.libtorch = facts.torch;
  environment.backend = facts.backend;
  environment.device = facts.device;
  environment.world_size = world_size;
  int64_t bytes = 0;
  for (const int64_t size : profile.tensors.bytes) bytes += size;
  results.run.model = ModelDescription{.name = facts.model,
                                       .dtype = facts.dtype,
                                       .parameters = facts.parameters,
                                       .tensors = static_cast<int64_t>(profile.tensors.bytes.size()),
                                       .gradient_bytes = bytes};
  results.notes = facts.notes;
  tuner.add_to(results);
  return results_text(results);
}

// An earlier result in `folder` is kept in folder/older/.
void write_run(const std::string& results, const ProfileSection& profile, const MeasuredAllReduce& curve,
               const std::filesystem::path& folder) {
  const std::vector<OutputFile> files = {{"tensors.csv", tensors_csv(profile.tensors)}, {"allreduce.csv", allreduce_csv(curve.rows)}};
  const Results written = with_files(parse_results(results, "results"), files);
  check_output_folder(folder, "folder");
  keep_older_result(folder, written.run.files);
  write_result(folder, written, files);
}

void bind_setting(nb::module_& module) {
  nb::class_<DdpSetting>(module, "DdpSetting", "One way to call DistributedDataParallel.")
      .def_ro("name", &DdpSetting::name)
      .def_prop_ro(
          "cap_mib", [](const DdpSetting& self) { return self.cap_bytes ? std::optional(mib(*self.cap_bytes)) : std::nullopt; },
          "None: no cap.")
      .def_ro("as_list", &DdpSetting::as_list, "Whether a list of caps makes its buckets.")
      .def_prop_ro(
          "counts", [](const DdpSetting& self) { return counts_of(self.plan); }, "Tensors per bucket, in gradient-ready order.");
  nb::class_<RunFacts>(module, "RunFacts", "What is written about a run.")
      .def(nb::init<>())
      .def_rw("model", &RunFacts::model)
      .def_rw("dtype", &RunFacts::dtype)
      .def_rw("torch", &RunFacts::torch)
      .def_rw("backend", &RunFacts::backend)
      .def_rw("device", &RunFacts::device)
      .def_rw("parameters", &RunFacts::parameters)
      .def_rw("command_line", &RunFacts::command_line)
      .def_rw("notes", &RunFacts::notes);
}

void bind_tuner(nb::module_& module) {
  nb::class_<Tuner>(module, "Tuner", "What to measure, and what to recommend. Steps: seconds, [setting][block], none first.")
      .def(
          "__init__",
          [](Tuner* self, const ProfileSection& profile, const MeasuredAllReduce& table, int64_t world_size, bool lists,
             double smallest_cap_mib, const std::vector<double>& caps_mib) {
            TunerOptions options{.lists = lists};
            if (smallest_cap_mib > 0) options.smallest_cap_bytes = bytes_from_mib(smallest_cap_mib, "smallest_cap_mib");
            for (const double cap : caps_mib) options.caps.push_back(bytes_from_mib(cap, "caps_mib"));
            new (self) Tuner(profile, table.rows, world_size, options);
          },
          "profile"_a, "table"_a, "world_size"_a, nb::kw_only(), "lists"_a, "smallest_cap_mib"_a = 0.0,
          "caps_mib"_a = std::vector<double>{})
      .def_prop_ro("calibration_settings", &Tuner::calibration_settings)
      .def("calibrate", &Tuner::calibrate, "step_s"_a)
      .def_prop_ro("settings", &Tuner::settings)
      .def("decide", &Tuner::decide, "step_s"_a)
      .def_prop_ro("choice", &Tuner::choice)
      .def_prop_ro("best_cap", &Tuner::best_cap)
      .def_prop_ro("outcome", [](const Tuner& self) { return std::string(name_of(self.decision().outcome)); })
      .def("predicted_s", &Tuner::predicted_s, "setting"_a)
      .def("measured_s", &Tuner::measured_s, "setting"_a)
      .def_prop_ro("gain_over_default",
                   [](const Tuner& self) {
                     const PairedRatio gain = self.gain_over_default();
                     return std::tuple(gain.ratio, gain.interval.low, gain.interval.high);
                   })
      .def("results", &results_of, "facts"_a, "profile"_a, "world_size"_a, "The text of a results.json.");
}

}  // namespace

void bind_tuning(nb::module_& module) {
  bind_setting(module);
  bind_tuner(module);
  module.def("caps_of_counts", &caps_of_counts, "counts"_a, "sizes"_a);
  module.def("settings_to_paste", &settings_to_paste, "cap_mib"_a, "element_bytes"_a, "plan_caps_mib"_a);
  module.def(
      "write_report",
      [](const std::string& results, const std::filesystem::path& path) {
        write_file_atomically(path, render_report(parse_results(results, "results")));
      },
      "results"_a, "path"_a);
  module.def("write_run", &write_run, "results"_a, "profile"_a, "curve"_a, "folder"_a);
  module.def(
      "results_in_words", [](const std::string& results) { return results_in_text(parse_results(results, "results")); }, "results"_a);
}

}  // namespace firkin::python
