#include "tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "bench/allreduce_bench.h"
#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/estimates.h"
#include "report/words.h"

namespace firkin {
namespace {

void check_input(const Workload& workload, const TuneOptions& options) {
  for (const int64_t cap : options.phases.caps) {
    if (cap < 1) throw InputError(fmt::format("tune: cap of {} bytes; expected at least 1", cap));
  }
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.scalar_type() == parameters[0].tensor.scalar_type()) continue;
    throw InputError(fmt::format("tune: {} and {} have different dtypes; expected one, since buckets do not mix them", parameters[0].name,
                                 parameter.name));
  }
}

class TuneRun {
 public:
  TuneRun(const ProcessGroup& group, Workload& workload, const TuneOptions& options)
      : group_(group), workload_(workload), options_(options) {
    tuning_.world_size = group.world();
    tuning_.rule = options.rule;
  }

  Tuning run() {
    measure_inputs();
    if (!tensors().knows_forward()) {
      tuning_.notes.emplace_back(UnmeasuredStrategy::kOrderedWithoutAwaiting);
    } else if (workload_.whole_step) {
      tuning_.notes.emplace_back(UnmeasuredStrategy::kOrderedWithoutOptimizer);
    }
    if (options_.sharded && workload_.whole_step) {
      tuning_.notes.emplace_back(UnmeasuredStrategy::kShardedWithoutOptimizer);
    }
    PhaseOptions phases = options_.phases;
    phases.ordered = tensors().knows_forward() && !workload_.whole_step;
    if (options_.sharded) phases.sharded = TrainedMemory{.element_bytes = static_cast<int64_t>(at::elementSize(dtype()))};
    phases.measures_sharded = options_.sharded && !workload_.whole_step;
    const StepMeter meter{.measure = [this](const auto&... what) { return measure(what...); },
                          .elapsed_s = [this] { return elapsed_s(); },
                          .of_rank_0 = [this](const std::vector<int64_t>& list) { return list_of_rank(group_, list, 0); },
                          .measure_collectives = [this] { return measure_collectives(); },
                          .on_partial = [this] { report_partial(); }};
    run_phases(phases, meter, tuning_);
    return std::move(tuning_);
  }

 private:
  std::function<void(const std::string&)> phase_progress(TuningPhase phase, int units) const {
    return [this, phase, units](const std::string& done) {
      if (options_.on_progress) options_.on_progress(phase, units, done);
    };
  }

  void report_partial() const {
    if (options_.on_partial) options_.on_partial(tuning_);
  }

  // The dtype of all trainable parameters.
  at::ScalarType dtype() const { return trainable_parameters(*workload_.module)[0].tensor.scalar_type(); }

  AllReduceBenchOptions allreduce_options(std::vector<int64_t> sizes, TuningPhase phase) const {
    return {.sizes = std::move(sizes),
            .dtype = dtype(),
            .seconds = std::min(options_.allreduce_seconds, options_.phases.seconds / 10),
            .seed = options_.seed,
            .on_progress = phase_progress(phase, AllReduceSchedule::kMostRounds)};
  }

  void measure_inputs() {
    constexpr double kProfiled = 0.15;  // the share of the time that may have passed then
    const auto is_enough = [this](int done) { return done >= kFewestProfileSteps && elapsed_s() > kProfiled * options_.phases.seconds; };
    tuning_.profile = measure_ready_profile(group_, workload_,
                                            {.steps = options_.profile_steps,
                                             .on_progress = phase_progress(TuningPhase::kProfile, options_.profile_steps),
                                             .is_enough = is_enough});
    report_partial();
    std::vector<int64_t> sizes = allreduce_sizes(tensors().total_bytes());
    std::erase_if(sizes, [&](int64_t bytes) { return bytes % static_cast<int64_t>(at::elementSize(dtype())) != 0; });
    tuning_.allreduce = allreduce_table(measure_allreduce(group_, allreduce_options(sizes, TuningPhase::kAllReduce)), group_.world());
    report_partial();
  }

  // Measures them alternating with all-reduces, from the smallest size of `bench collectives` to all gradients in one.
  std::vector<CollectiveRow> measure_collectives() const {
    if (group_.size == 1) return {};
    std::vector<int64_t> sizes = allreduce_sizes(tensors().total_bytes());
    std::erase_if(sizes, [largest = sizes.back()](int64_t bytes) { return bytes < 4 * kKiB && bytes != largest; });
    sizes = sliced_sizes(std::move(sizes), group_.size, dtype());
    AllReduceBenchOptions options = allreduce_options(std::move(sizes), TuningPhase::kShardedTable);
    options.collectives = {kCollectives.begin(), kCollectives.end()};
    return collective_rows(measure_allreduce(group_, options), group_.world());
  }

  // All settings keep the profile's ready order, so that plans mean the same tensors everywhere.
  StepSetting step_setting(const TunedSetting& tuned) const {
    DataParallelOptions options;
    options.strategy = find_strategy(std::string(strategy_of(tuned.kind)));
    options.broadcast_parameters = false;  // the ranks have the same ones already
    options.ready_order = tuning_.profile.ready_order;
    if (tuned.kind == SettingKind::kTorchDefault) {
      options.cap = kTorchDefaultCaps;
    } else if (tuned.cap_bytes) {
      options.cap = with_cap(options_.rule, *tuned.cap_bytes);
    } else if (!tuned.plan.buckets.empty()) {
      options.plan = BucketPlan{tuned.plan.buckets, {}};  // `ordered` chooses a launch order from steps that the plan did not know
    }
    return {name_of(tuned), options};
  }

  std::vector<SettingSteps> measure(TuningPhase phase, const std::vector<TunedSetting>& settings, const StepBlocks& blocks,
                                    const std::function<bool(const std::vector<SettingSteps>&)>& is_enough) {
    std::vector<StepSetting> step_settings;
    for (const TunedSetting& setting : settings) step_settings.push_back(step_setting(setting));
    StepBenchOptions options{.blocks = blocks, .steps = options_.steps, .is_enough = is_enough};
    options.blocks.seed = options_.seed;
    const bool is_open = std::isfinite(options_.phases.seconds);  // the number of blocks depends on what they show
    options.on_progress = phase_progress(phase, is_open ? 0 : blocks.most * static_cast<int>(settings.size()));
    return measure_steps(group_, workload_, step_settings, options);
  }

  // Seconds since the tuning began, by rank 0's clock.
  double elapsed_s() const { return of_rank_0(group_, seconds_since(started_)); }

  const TensorProfile& tensors() const { return tuning_.profile.tensors; }

  const ProcessGroup& group_;
  Workload& workload_;
  const TuneOptions& options_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  Tuning tuning_;
};

}  // namespace

PhaseOptions phases_of(double seconds, std::optional<int> blocks, const std::vector<int64_t>& caps) {
  constexpr int kUsual = 20, kMostInRace = 40;
  return {.seconds = seconds,
          .calibration_blocks = {.most = std::max(4, blocks.value_or(kUsual) / 2)},
          .race_blocks = {.most = std::isfinite(seconds) ? kMostInRace : PhaseOptions::Blocks().most},
          .gain_blocks = {.fewest = static_cast<int>(kFewestSamples), .most = std::isfinite(seconds) ? blocks : blocks.value_or(kUsual)},
          .caps = caps};
}

void show_progress(TuneOptions& options, bool enabled) {
  struct Phase {
    std::optional<TuningPhase> phase;
    std::optional<Progress> progress;
    std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();  // of the whole tuning
  };
  options.on_progress = [shown = std::make_shared<Phase>(), enabled, budget_s = options.phases.seconds](TuningPhase phase, int units,
                                                                                                        const std::string& done) {
    if (phase != shown->phase) shown->progress.emplace(std::string(words_of(phase)), units, enabled);
    shown->phase = phase;
    const double remaining_s = budget_s - seconds_since(shown->started);
    shown->progress->advance(!std::isfinite(remaining_s) ? done
                             : remaining_s < 1           ? done + ", about to end"
                                                         : fmt::format("{}, at most {:.0f} s left", done, remaining_s));
  };
}

Tuning tune(const ProcessGroup& group, Workload& workload, const TuneOptions& options) {
  check_input(workload, options);
  return TuneRun(group, workload, options).run();
}

std::vector<OutputFile> tables_of(const Tuning& tuning) {
  std::vector<OutputFile> files;
  if (!tuning.profile.tensors.names.empty()) files.push_back({"tensors.csv", tensors_csv(tuning.profile.tensors)});
  if (!tuning.allreduce.empty()) files.push_back({"allreduce.csv", allreduce_csv(tuning.allreduce)});
  return files;
}

}  // namespace firkin
