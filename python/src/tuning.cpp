// Tuner, and the page and the settings that follow from its results.
#include <fmt/format.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "bindings.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/output_folder.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "report/report.h"
#include "results/results.h"
#include "tuning/tuning.h"

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

BucketPlan plan_of_counts(const std::vector<int64_t>& counts) {
  BucketPlan plan;
  int64_t first = 0;
  for (const int64_t count : counts) {
    plan.buckets.push_back({first, count});
    first += count;
  }
  return plan;
}

// MiB for each bucket; None where PyTorch's rule cannot make these buckets.
std::optional<std::vector<double>> caps_of_counts(const std::vector<int64_t>& counts, const std::vector<int64_t>& sizes) {
  const BucketPlan plan = plan_of_counts(counts);
  check_plan(plan, std::ssize(sizes));
  const PyTorchCaps caps = pytorch_caps(plan, sizes);
  if (!caps.reproduces_plan) return std::nullopt;
  return caps.mib;
}

// What only Python knows of a run.
struct RunFacts {
  std::string model, dtype, torch, backend, device;
  int64_t parameters = 0;
  std::vector<std::string> command_line, notes;
};

// One way to call DistributedDataParallel: by a cap, by the list of caps that makes `plan`, or with neither.
struct DdpSetting {
  std::string name;
  std::optional<int64_t> cap_bytes = {};
  bool as_list = false;
  BucketPlan plan = {};  // over the profile's tensors: what the setting should give
};

using Steps = std::vector<std::vector<double>>;  // seconds, [setting][block]

// What firkin.tune measures through DistributedDataParallel, one step of tuning/ after another.
class Tuner {
 public:
  // lists: whether DistributedDataParallel takes a list of caps, with which any plan can be calibrated on. caps: to be raced besides the
  // best predicted. Throws InputError when the profile or the table does not pass its checks, or a cap is below the smallest.
  Tuner(ProfileSection profile, AllReduceTable table, int64_t world_size, bool lists, size_t calibrations, int64_t smallest_cap_bytes,
        std::vector<int64_t> caps)
      : smallest_cap_bytes_(smallest_cap_bytes), caps_(std::move(caps)) {
    tuning_.profile = std::move(profile);
    tuning_.allreduce = std::move(table);
    tuning_.world_size = world_size;
    check_profile(tuning_.profile.tensors);
    comm_costs(tuning_.allreduce, world_size);
    for (const int64_t cap : caps_) {
      if (cap >= smallest_cap_bytes) continue;
      throw InputError(fmt::format("a cap of {}; expected at least {}", format_bytes(cap), format_bytes(smallest_cap_bytes)));
    }
    add_calibration_settings(lists, calibrations);
  }

  // Four plans that no cap makes where lists are possible, else caps. To be measured after none.
  const std::vector<DdpSetting>& calibration_settings() const { return calibration_settings_; }

  void calibrate(const Steps& step_s, size_t raced) {
    tuning_.calibration = measured(step_s, calibration_settings_, /*with_none=*/true);
    firkin::calibrate(tuning_);
    choose_race(tuning_, caps_, smallest_cap_bytes_, raced);
    for (const CapPrediction& cap : tuning_.raced) race_settings_.push_back(cap_setting(cap.cap_bytes));
  }

  // After calibrate(): the caps to race, ascending. Without none.
  const std::vector<DdpSetting>& race_settings() const { return race_settings_; }

  // Whether another block of it is worth nothing.
  bool race(const Steps& step_s) {
    tuning_.race = measured(step_s, race_settings_, /*with_none=*/false);
    return is_clear(tuning_);
  }

  // After race(): PyTorch's default, and the chosen cap. To be measured after none.
  std::vector<DdpSetting> gain_settings() const {
    return {{.name = kTorchDefaultName, .plan = assign_buckets(tuning_.profile.tensors.bytes, kTorchDefaultCaps)},
            race_settings_.at(tuning_.decision.standing.choice)};
  }

  void decide(const Steps& step_s) {
    tuning_.gain = measured(step_s, gain_settings(), /*with_none=*/true);
    tuning_.gain.back().name = kChosenCapName;
    firkin::decide(tuning_);
  }

  // After decide().
  DdpSetting choice() const { return gain_settings()[keeps_default(tuning_.decision.outcome) ? 0 : 1]; }

  // All of it, after decide().
  Results results(const RunFacts& facts) const {
    Results sections;
    add_sections(tuning_, sections);
    sections.run = begin_head("tune");
    sections.run.command_line = facts.command_line;
    Environment& environment = sections.run.environment;
    environment.libtorch = facts.torch;
    environment.backend = facts.backend;
    environment.device = facts.device;
    environment.world_size = tuning_.world_size;
    const TensorProfile& tensors = tuning_.profile.tensors;
    sections.run.model = ModelDescription{.name = facts.model,
                                          .dtype = facts.dtype,
                                          .parameters = facts.parameters,
                                          .tensors = std::ssize(tensors.bytes),
                                          .gradient_bytes = tensors.total_bytes()};
    sections.notes.insert(sections.notes.begin(), facts.notes.begin(), facts.notes.end());
    return sections;
  }

 private:
  DdpSetting cap_setting(int64_t cap_bytes) const {
    CapOptions rule = tuning_.rule;
    rule.cap_bytes = cap_bytes;
    return {.name = format_bytes(cap_bytes), .cap_bytes = cap_bytes, .plan = assign_buckets(tuning_.profile.tensors.bytes, rule)};
  }

  void add_calibration_settings(bool lists, size_t count) {
    constexpr size_t kAll = 4;  // one more than what they are to determine
    const TensorProfile& profile = tuning_.profile.tensors;
    for (const BucketPlan& plan : lists ? plans_to_calibrate_on(profile, tuning_.rule) : std::vector<BucketPlan>()) {
      if (!pytorch_caps(plan, profile.bytes).reproduces_plan) continue;
      calibration_settings_.push_back({.name = "calibration", .as_list = true, .plan = plan});
    }
    for (const int64_t parts : {24, 12, 6, 3}) {
      if (calibration_settings_.size() == kAll) break;
      calibration_settings_.push_back(cap_setting(std::max(profile.total_bytes() / parts, smallest_cap_bytes_)));
    }
    for (std::ptrdiff_t i = 0; calibration_settings_.size() > count; ++i) calibration_settings_.erase(calibration_settings_.begin() + i);
    for (const DdpSetting& setting : calibration_settings_) tuning_.calibration_plans.push_back(setting.plan);
  }

  static std::vector<SettingSteps> measured(const Steps& step_s, const std::vector<DdpSetting>& settings, bool with_none) {
    const size_t expected = settings.size() + (with_none ? 1 : 0);
    if (step_s.size() != expected) throw std::invalid_argument(fmt::format("{} series of steps; expected {}", step_s.size(), expected));
    std::vector<SettingSteps> list;
    if (with_none) list.push_back({.name = "none", .step_s = step_s[0]});
    for (const DdpSetting& setting : settings) {
      list.push_back({.name = setting.as_list ? fmt::format("{} buckets", setting.plan.buckets.size()) : setting.name,
                      .buckets = std::ssize(setting.plan.buckets),
                      .step_s = step_s[list.size()]});
    }
    return list;
  }

  Tuning tuning_;
  int64_t smallest_cap_bytes_;
  std::vector<int64_t> caps_;
  std::vector<DdpSetting> calibration_settings_, race_settings_;
};

// An earlier result in `folder` is kept in folder/older/.
void write_run(const std::string& text, const std::filesystem::path& folder) {
  const Results results = parse_results(text, "results");
  const std::vector<OutputFile> files = {{"tensors.csv", tensors_csv(results.profile.value().tensors)},
                                         {"allreduce.csv", allreduce_csv(results.allreduce)}};
  const Results written = with_files(results, files);
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
          "counts", [](const DdpSetting& self) { return counts_of(self.plan); }, "Tensors per bucket, in gradient-ready order.")
      .def("__getstate__", [](const DdpSetting& self) { return std::tuple(self.name, self.cap_bytes, self.as_list, counts_of(self.plan)); })
      .def("__setstate__", [](DdpSetting& self, const std::tuple<std::string, std::optional<int64_t>, bool, std::vector<int64_t>>& state) {
        const auto& [name, cap_bytes, as_list, counts] = state;
        new (&self) DdpSetting{name, cap_bytes, as_list, plan_of_counts(counts)};
      });
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
  nb::class_<Tuner>(module, "Tuner", "What to measure, and what to recommend. Steps: seconds, [setting][block].")
      .def(
          "__init__",
          [](Tuner* self, const ProfileSection& profile, const MeasuredAllReduce& table, int64_t world_size, bool lists,
             size_t calibrations, double smallest_cap_mib, const std::vector<double>& caps_mib) {
            const int64_t smallest = smallest_cap_mib > 0 ? bytes_from_mib(smallest_cap_mib, "smallest_cap_mib") : 1;
            std::vector<int64_t> caps;
            for (const double cap : caps_mib) caps.push_back(bytes_from_mib(cap, "caps_mib"));
            new (self) Tuner(profile, table.rows, world_size, lists, calibrations, smallest, std::move(caps));
          },
          "profile"_a, "table"_a, "world_size"_a, nb::kw_only(), "lists"_a, "calibrations"_a = 4, "smallest_cap_mib"_a = 0.0,
          "caps_mib"_a = std::vector<double>{})
      .def_prop_ro("calibration_settings", &Tuner::calibration_settings)
      .def("calibrate", &Tuner::calibrate, "step_s"_a, "raced"_a = RaceOptions().count,
           "step_s: of none, then of calibration_settings. raced: caps, at most, but for those that were asked for.")
      .def_prop_ro("race_settings", &Tuner::race_settings)
      .def("race", &Tuner::race, "step_s"_a, "Whether it is clear. step_s: of race_settings.")
      .def_prop_ro("gain_settings", &Tuner::gain_settings)
      .def("decide", &Tuner::decide, "step_s"_a, "step_s: of none, then of gain_settings.")
      .def_prop_ro("choice", &Tuner::choice, "The default where that is to be kept, else the chosen cap.")
      .def(
          "results", [](const Tuner& self, const RunFacts& facts) { return results_text(self.results(facts)); }, "facts"_a,
          "The text of a results.json.");
}

}  // namespace

void bind_tuning(nb::module_& module) {
  bind_setting(module);
  bind_tuner(module);
  module.def("caps_of_counts", &caps_of_counts, "counts"_a, "sizes"_a);
  module.def(
      "write_report",
      [](const std::string& results, const std::filesystem::path& path) {
        write_file_atomically(path, render_report(parse_results(results, "results")));
      },
      "results"_a, "path"_a);
  module.def("write_run", &write_run, "results"_a, "folder"_a);
  module.def(
      "profile_and_curve",
      [](const std::string& text) {
        const Results results = parse_results(text, "results");
        return std::pair(results.profile.value(), MeasuredAllReduce{results.allreduce});
      },
      "results"_a);
  module.def(
      "results_in_words", [](const std::string& results) { return results_in_text(parse_results(results, "results")); }, "results"_a);
}

}  // namespace firkin::python
