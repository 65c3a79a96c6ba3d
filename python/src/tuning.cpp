// What firkin.tune needs of firkin._core: schedules of all-reduces and steps, and measuring/tuning.h over settings of
// PyTorch's DistributedDataParallel.
#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <functional>
#include <tuple>
#include <utility>

#include "core.h"
#include "firkin/base/error.h"
#include "firkin/base/machine.h"
#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/decision.h"
#include "firkin/stats/estimates.h"
#include "measuring/allreduce_schedule.h"
#include "measuring/steps.h"
#include "measuring/tuning.h"
#include "report/words.h"
#include "results/results.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace firkin::python {
namespace {

// ---- Schedules.

void bind_schedules(nb::module_& module) {
  nb::class_<AllReduceVisit>(module, "AllReduceVisit", "One turn of one size, in this order, after a barrier.")
      .def_ro("size", &AllReduceVisit::size, "Its index.")
      .def_ro("checks", &AllReduceVisit::checks, "Untimed: a queue over known values, whose wrong elements are counted.")
      .def_ro("warms_up", &AllReduceVisit::warms_up, "Untimed: one call.")
      .def_ro("isolated", &AllReduceVisit::isolated, "Samples of `calls` calls, one after another.")
      .def_ro("calls", &AllReduceVisit::calls)
      .def_ro("queued", &AllReduceVisit::queued, "Samples of `queue` calls under way together, with a barrier before each.")
      .def_ro("queue", &AllReduceVisit::queue);
  nb::class_<AllReduceSchedule>(module, "AllReduceSchedule", "Which all-reduces to time next, how many, and when it is enough.")
      .def(
          "__init__",
          [](AllReduceSchedule* self, const std::vector<int64_t>& sizes, double seconds, int64_t seed, int64_t queue_bytes) {
            std::vector<TimedSize> timed;
            for (const int64_t bytes : sizes) {
              check_allreduce_size(bytes);
              timed.push_back({.bytes = bytes});
            }
            new (self) AllReduceSchedule(timed, {.seconds = seconds, .seed = static_cast<uint64_t>(seed), .queue_bytes = queue_bytes});
          },
          "sizes"_a, "seconds"_a, "seed"_a, "queue_bytes"_a, "queue_bytes: for all buffers of a queue together.")
      .def("queue", &AllReduceSchedule::queue, "size"_a, "How many buffers a size needs.")
      .def("next", &AllReduceSchedule::next, "None: it is enough.")
      .def(
          "tell", [](AllReduceSchedule& self, const std::vector<double>& seconds, int64_t wrong) { self.tell(seconds, wrong); },
          "seconds"_a, "wrong"_a,
          "seconds: the slowest rank's: per call for each isolated sample, for each queue, then for all isolated samples, for all queues,\n"
          "and since the beginning. wrong: elements, over all ranks.")
      .def_prop_ro("rounds", &AllReduceSchedule::rounds, "Rounds that have ended.")
      .def_ro_static("most_rounds", &AllReduceSchedule::kMostRounds)
      .def(
          "table",
          [](const AllReduceSchedule& self, int64_t world_size) { return MeasuredAllReduce{allreduce_table(self.series(), world_size)}; },
          "world_size"_a);
  module.def("allreduce_sizes", &allreduce_sizes, "largest_bytes"_a, "4 B, 16 B, ... up to `largest_bytes`, which is always the last.");
  nb::class_<StepVisit>(module, "StepVisit", "One setting of training steps in one block.")
      .def_ro("setting", &StepVisit::setting, "Its index.")
      .def_prop_ro("warmup_steps", [](const StepVisit& self) { return self.steps.warmup_steps; })
      .def_prop_ro("timed_steps", [](const StepVisit& self) { return self.steps.timed_steps; })
      .def_ro("block", &StepVisit::block)
      .def_ro("ends_block", &StepVisit::ends_block);
  nb::class_<StepSchedule>(module, "StepSchedule", "Blocks in which every setting runs once, in an order shuffled anew.")
      .def(
          "__init__",
          [](StepSchedule* self, const std::vector<std::pair<int, int>>& steps, int fewest, int most, double seconds, int64_t seed) {
            std::vector<StepCounts> settings;
            for (const auto& [warmup, timed] : steps) settings.push_back({warmup, timed});
            new (self) StepSchedule(settings, {.fewest = fewest, .most = most, .seconds = seconds, .seed = static_cast<uint64_t>(seed)});
          },
          "steps"_a, "fewest"_a, "most"_a, "seconds"_a, "seed"_a,
          "steps: for each setting, of warm-up and timed. Beyond the fewest, no block begins that would end after `seconds`.")
      .def("next", &StepSchedule::next, "None: it is enough.")
      .def("tell", &StepSchedule::tell, "elapsed_s"_a = 0.0, "is_enough"_a = false, "Both are looked at where a visit ends its block.");
}

// ---- The phases of a tuning over settings of PyTorch's DistributedDataParallel.

using Steps = std::vector<std::vector<double>>;  // seconds, [setting][block]

// Tensors per bucket, and the arguments of DistributedDataParallel.
using PythonSetting = std::pair<std::vector<int64_t>, nb::dict>;
PythonSetting for_python(const TunedSetting& setting, const std::vector<int64_t>& bytes) {
  std::vector<int64_t> counts;
  for (const Bucket& bucket : setting.plan.buckets) counts.push_back(bucket.count);
  nb::dict kwargs;
  if (setting.kind == SettingKind::kNone) {
    kwargs["static_graph"] = false;  // a static graph's first step would communicate
  } else if (setting.cap_bytes) {
    kwargs["bucket_cap_mb"] = mib(*setting.cap_bytes);
  } else if (setting.kind == SettingKind::kPlan) {
    kwargs["bucket_cap_mb_list"] = nb::cast(pytorch_caps(setting.plan, bytes).bucket_cap_mb_list);
  }
  for (const std::string& option : setting.options) kwargs[option.c_str()] = true;
  return {counts, kwargs};
}

std::vector<SettingSteps> with_seconds(const std::vector<TunedSetting>& settings, const Steps& step_s) {
  std::vector<SettingSteps> list;
  for (const TunedSetting& setting : settings) {
    list.push_back({.name = name_of(setting), .buckets = std::ssize(setting.plan.buckets), .step_s = step_s.at(list.size())});
  }
  return list;
}

std::pair<size_t, Results> tune_steps(const MeasuredProfile& profile, const MeasuredAllReduce& table, int64_t world_size,
                                      const nb::callable& measure, const nb::callable& elapsed_s, const nb::callable& of_rank_0,
                                      const nb::callable& possible_options, double seconds, bool lists, size_t calibrations,
                                      std::pair<int, int> calibration_blocks, size_t raced, std::pair<int, int> race_blocks,
                                      int fewest_gain_blocks, double smallest_cap_mib, const std::vector<double>& caps_mib,
                                      const std::vector<std::string>& ddp_options) {
  PhaseOptions options{.seconds = seconds, .calibrations = calibrations, .raced = raced, .options = ddp_options};
  options.calibration_blocks = {calibration_blocks.first, calibration_blocks.second};
  options.race_blocks = {race_blocks.first, race_blocks.second};
  options.gain_blocks.fewest = fewest_gain_blocks;
  for (const double cap : caps_mib) {
    if (!(cap >= smallest_cap_mib)) throw InputError(fmt::format("a cap of {:g} MiB; expected at least {:.3g} MiB", cap, smallest_cap_mib));
    options.caps.push_back(bytes_from_mib(cap, "caps_mib"));
  }
  if (smallest_cap_mib > 0) options.smallest_cap_bytes = bytes_from_mib(smallest_cap_mib, "smallest_cap_mib");
  Tuning tuning;
  tuning.profile = profile;
  tuning.allreduce = table.rows;
  tuning.world_size = world_size;
  const std::vector<int64_t>& bytes = profile.tensors.bytes;
  StepMeter meter;
  meter.measure = [&](TuningPhase phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks, const auto& is_enough) {
    std::vector<PythonSetting> list;
    for (const TunedSetting& setting : settings) list.push_back(for_python(setting, bytes));
    const std::function<bool(const Steps&)> is_enough_s = [&](const Steps& so_far) { return is_enough(with_seconds(settings, so_far)); };
    return with_seconds(settings, nb::cast<Steps>(measure(words_of(phase), list, blocks.fewest, blocks.most, blocks.seconds, is_enough_s)));
  };
  meter.elapsed_s = [&] { return nb::cast<double>(elapsed_s()); };
  meter.of_rank_0 = [&](const std::vector<int64_t>& list) { return nb::cast<std::vector<int64_t>>(of_rank_0(list)); };
  meter.is_possible = [&](const BucketPlan& plan) { return lists && pytorch_caps(plan, bytes).reproduces_plan; };
  meter.possible_options = [&](const TunedSetting& setting, const std::vector<std::string>& names) {
    return nb::cast<std::vector<std::string>>(possible_options(for_python(setting, bytes), names));
  };
  run_phases(options, meter, tuning);
  Results results;
  results.run = begin_head("tune");
  results.run.environment.world_size = world_size;
  add_sections(tuning, results);
  results.notes = notes_of(tuning);
  return {recommended_setting(tuning), std::move(results)};
}

}  // namespace

void bind_tuning(nb::module_& module) {
  bind_schedules(module);
  module.attr("MOST_RACED") = RaceOptions().count;
  module.attr("FEWEST_SAMPLES") = kFewestSamples;
  const PhaseOptions usual;
  const auto pair_of = [](const PhaseOptions::Blocks& blocks) { return std::pair(blocks.fewest, blocks.most); };
  module.def(
      "tune_steps", &tune_steps, "profile"_a, "table"_a, "world_size"_a, "measure"_a, "elapsed_s"_a, "of_rank_0"_a, "possible_options"_a,
      nb::kw_only(), "seconds"_a = usual.seconds, "lists"_a = true, "calibrations"_a = usual.calibrations,
      "calibration_blocks"_a = pair_of(usual.calibration_blocks), "raced"_a = usual.raced, "race_blocks"_a = pair_of(usual.race_blocks),
      "fewest_gain_blocks"_a = usual.gain_blocks.fewest, "smallest_cap_mib"_a = 0.0, "caps_mib"_a = std::vector<double>{},
      "ddp_options"_a = std::vector<std::string>{},
      "The phases of firkin.tune in which steps are measured (src/measuring/tuning.h). Collective.\n\n"
      "measure(what, settings, fewest, most, seconds, is_enough): runs settings in blocks and returns seconds, [setting][block]. what:\n"
      "the phase in words. A setting: the tensors per bucket that are expected, arguments of DistributedDataParallel.\n"
      "is_enough(so_far) is to be asked after each block. elapsed_s(): since the tuning began. of_rank_0(list): rank 0's list. "
      "possible_options(setting, options):\n"
      "those that the program can be run with. lists: whether\n"
      "DistributedDataParallel takes a list of caps, so that any plan can serve for calibration. calibrations: the number of settings\n"
      "to calibrate on, 4 or 2. raced: the most caps that race. Blocks: the fewest and the most. caps_mib: caps that race whatever\n"
      "their prediction. ddp_options: options of DistributedDataParallel that race beside the chosen cap, if there is time.\n"
      "Returns which setting of the last phase is recommended, and the Results without the facts that only PyTorch knows. Raises\n"
      "InputError if a cap is below the smallest.");
  module.def(
      "available_memory_bytes", [] { return firkin::available_memory_bytes(); },
      "That this process can still allocate on the host, by its control groups as well.");
}

}  // namespace firkin::python
