#include "tune/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "bench/allreduce_bench.h"
#include "bench/ready_profile.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// One Progress per phase.
class PhaseProgress {
 public:
  explicit PhaseProgress(bool enabled) : enabled_(enabled) {}
  void operator()(const std::string& phase, int units, const std::string& done) {
    if (phase != phase_ && progress_) progress_->finish();
    if (phase != phase_) progress_ = std::make_unique<Progress>(phase, units, enabled_);
    phase_ = phase;
    progress_->advance(done);
  }

 private:
  bool enabled_;
  std::string phase_;
  std::unique_ptr<Progress> progress_;
};

void check_input(const Workload& workload, const TuneOptions& options) {
  for (const int64_t cap : options.caps) {
    if (cap < 1) throw InputError(fmt::format("tune: cap of {} bytes; expected at least 1", cap));
  }
  const std::vector<NamedTensor> parameters = trainable_parameters(*workload.module);
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.scalar_type() == parameters[0].tensor.scalar_type()) continue;
    throw InputError(fmt::format("tune: {} and {} have different dtypes; expected one, since buckets do not mix them", parameters[0].name,
                                 parameter.name));
  }
}

// The share of the time that may have passed when a part of the measurement ends.
constexpr double kProfiled = 0.15, kCalibrated = 0.4, kRaced = 0.6, kOrderedRaced = 0.7, kAll = 1;

class TuneRun {
 public:
  TuneRun(const ProcessGroup& group, Workload& workload, const TuneOptions& options)
      : group_(group), workload_(workload), options_(options) {
    tuning_.world_size = group.world();
    tuning_.rule = options.rule;
  }

  Tuning run() {
    measure_inputs();
    calibrate_on_steps();
    race_caps();
    compare_caps();
    race_ordered();
    choose_sharded();
    measure_gain();
    decide(tuning_);
    return std::move(tuning_);
  }

 private:
  std::function<void(const std::string&)> phase_progress(const std::string& phase, int units) const {
    return [this, phase, units](const std::string& done) {
      if (options_.on_progress) options_.on_progress(phase, units, done);
    };
  }

  void tell() const {
    if (options_.on_partial) options_.on_partial(tuning_);
  }

  // The dtype of all trainable parameters.
  at::ScalarType dtype() const { return trainable_parameters(*workload_.module)[0].tensor.scalar_type(); }

  AllReduceBenchOptions allreduce_options(std::vector<int64_t> sizes, const std::string& phase) const {
    return {.sizes = std::move(sizes),
            .dtype = dtype(),
            .seconds = std::min(options_.allreduce_seconds, options_.seconds / 10),
            .seed = options_.seed,
            .on_progress = phase_progress(phase, AllReduceSchedule::kMostRounds)};
  }

  void measure_inputs() {
    ReadyProfile measured =
        measure_ready_profile(group_, workload_,
                              {.steps = options_.profile_steps,
                               .on_progress = phase_progress("profiling backward", options_.profile_steps),
                               .is_enough = [this](int done) { return is_past(kProfiled) && done >= kFewestProfileSteps; }});
    tuning_.profile = std::move(measured.profile);
    tuning_.ready_order = std::move(measured.ready_order);
    tell();
    std::vector<int64_t> sizes = allreduce_sizes(tensors().total_bytes());
    std::erase_if(sizes, [&](int64_t bytes) { return bytes % static_cast<int64_t>(at::elementSize(dtype())) != 0; });
    tuning_.allreduce = allreduce_table(measure_allreduce(group_, allreduce_options(sizes, "measuring all-reduce")), group_.world());
    tell();
  }

  void calibrate_on_steps() {
    tuning_.calibration_plans = plans_to_calibrate_on(tensors(), options_.rule);
    std::vector<StepSetting> settings = {setting("none", "none")};
    for (const BucketPlan& plan : tuning_.calibration_plans) {
      settings.push_back(setting(fmt::format("planned, {} buckets", plan.buckets.size()), "planned"));
      settings.back().options.plan = plan;
    }
    tuning_.calibration = measure("calibrating", settings, {.most = options_.calibration_blocks, .fewest = 3, .share = kCalibrated});
    calibrate(tuning_);
    tell();
  }

  // Rank 0 decides which caps race, and which one leads.
  void race_caps() {
    choose_race(tuning_, options_.compare ? std::vector<int64_t>() : options_.caps);
    const std::vector<int64_t> caps = list_of_rank<int64_t>(group_, bytes_of(tuning_.raced), 0);
    if (caps != bytes_of(tuning_.raced)) tuning_.raced = predict_steps(model_of(tuning_), options_.rule, caps);
    std::vector<StepSetting> settings;
    for (const PredictedCap& cap : tuning_.raced) settings.push_back(cap_setting(cap.cap_bytes));
    const Blocks blocks{.most = options_.race_blocks, .fewest = 3, .share = kRaced};
    tuning_.race = measure("racing the best caps", settings, blocks, [&](const std::vector<SettingSteps>& so_far) {
      tuning_.race = so_far;
      return of_rank_0(group_, is_clear(tuning_) ? 1 : 0) == 1;
    });
    const auto leader = of_rank_0(group_, static_cast<double>(tuning_.standing.choice));
    tuning_.standing.choice = static_cast<size_t>(leader);
    tell();
  }

  void compare_caps() {
    if (!options_.compare) return;
    const std::vector<int64_t>& sizes = tensors().bytes;
    auto [caps, notes] = distinct_caps(options_.caps.empty() ? default_caps(sizes, options_.rule) : options_.caps, sizes, options_.rule);
    tuning_.notes.insert(tuning_.notes.end(), notes.begin(), notes.end());
    add_cap(caps, choice_of(tuning_).cap_bytes, sizes, options_.rule);
    tuning_.compared = predict_steps(model_of(tuning_), options_.rule, caps);
  }

  // A short race chooses the plan: the simulation takes ready times from steps without communication, and cannot tell
  // close plans apart.
  void race_ordered() {
    if (!tensors().knows_forward()) {
      tuning_.notes.emplace_back("ordered is not measured: no module awaits its parameters, see await_parameters()");
      return;
    }
    if (workload_.whole_step) {
      tuning_.notes.emplace_back("ordered is not measured: the step function would have to use an OverlappedOptimizer");
      return;
    }
    std::vector<BucketPlan> candidates = ordered_candidates(model_of(tuning_), most_calibrated_buckets(tuning_.calibration_plans));
    candidates.resize(static_cast<size_t>(of_rank_0(group_, static_cast<double>(candidates.size()))), candidates.back());
    std::vector<StepSetting> settings;
    for (BucketPlan& plan : candidates) {
      plan = plan_of_rank_0(group_, plan);
      settings.push_back(ordered_setting(plan));
    }
    size_t fastest = 0;
    if (candidates.size() > 1 && !is_past(kRaced)) {
      const std::vector<SettingSteps> race =
          measure("racing ordered's buckets", settings, {.most = 3, .fewest = 1, .share = kOrderedRaced});
      const auto typical_s = [](const SettingSteps& each) { return median(each.step_s); };
      fastest = static_cast<size_t>(std::ranges::min_element(race, {}, typical_s) - race.begin());
    }
    tuning_.ordered = candidates[fastest];
  }

  // Measures them in turns with all-reduces, from the smallest size of `bench collectives` to all gradients in one.
  void measure_collectives() {
    if (group_.size == 1) return;
    std::vector<int64_t> sizes = allreduce_sizes(tensors().total_bytes());
    std::erase_if(sizes, [largest = sizes.back()](int64_t bytes) { return bytes < 4 * kKiB && bytes != largest; });
    sizes = sliced_sizes(std::move(sizes), group_.size, dtype());
    AllReduceBenchOptions options = allreduce_options(std::move(sizes), "measuring reduce-scatter and all-gather");
    options.collectives = {kCollectives.begin(), kCollectives.end()};
    tuning_.collectives = collective_rows(measure_allreduce(group_, options), group_.world());
  }

  void choose_sharded() {
    if (!options_.sharded) return;
    measure_collectives();
    const auto bytes = static_cast<int64_t>(at::elementSize(dtype()));
    tune_sharded(tuning_, {.element_bytes = bytes, .masters = bytes < kFloatBytes});
    tuning_.sharded->cap_bytes = list_of_rank<int64_t>(group_, {tuning_.sharded->cap_bytes}, 0)[0];
    if (!measures_sharded()) tuning_.notes.emplace_back("sharded is not measured: the step function would have to use a ShardedOptimizer");
  }

  bool measures_sharded() const { return tuning_.sharded && !workload_.whole_step; }

  std::vector<StepSetting> gain_settings() const {
    std::vector<StepSetting> settings = {setting("none", "none")};  // first: others are compared with it
    for (const char* name : {"naive", "flat", "overlap"}) {
      if (options_.compare) settings.push_back(setting(name, name));
    }
    settings.push_back(setting(kTorchDefaultName, "torch"));
    settings.back().options.cap = kTorchDefaultCaps;
    if (tuning_.ordered) settings.push_back(ordered_setting(*tuning_.ordered));
    if (measures_sharded()) {
      settings.push_back(cap_setting(tuning_.sharded->cap_bytes));
      settings.back().name = kShardedName;
      settings.back().options.strategy = find_strategy(kShardedName);
    }
    for (const PredictedCap& cap : tuning_.compared) settings.push_back(cap_setting(cap.cap_bytes));
    if (tuning_.compared.empty()) {
      settings.push_back(cap_setting(choice_of(tuning_).cap_bytes));
      settings.back().name = kChosenCapName;
    }
    return settings;
  }

  // Measures steps that had no part in the choice: what it gains, and what is to be compared.
  void measure_gain() {
    const auto most = static_cast<size_t>(options_.steps.blocks);
    const size_t every = std::max<size_t>(most / 10, 1);  // often enough to lose little, seldom enough to cost nothing
    const Blocks blocks{.most = options_.steps.blocks, .fewest = static_cast<int>(kFewestSamples), .share = kAll};
    tuning_.gain = measure("measuring the gain", gain_settings(), blocks, [&](const std::vector<SettingSteps>& so_far) {
      const size_t done = so_far[0].step_s.size();
      if (!options_.on_partial || done == most || (done > 1 && done % every != 0)) return false;
      tuning_.gain = so_far;
      tell();
      return false;
    });
  }

  // All keep the profile's ready order, so that plans mean the same tensors everywhere.
  StepSetting setting(std::string_view name, std::string_view strategy) const {
    DataParallelOptions options;
    options.strategy = find_strategy(strategy);
    options.broadcast_parameters = false;  // the ranks have the same ones already
    options.ready_order = tuning_.ready_order;
    return {std::string(name), options};
  }

  StepSetting cap_setting(int64_t cap) const {
    StepSetting bucketed = setting(cap_setting_name(cap), "bucketed");
    bucketed.options.cap = with_cap(options_.rule, cap);
    return bucketed;
  }

  // Without the plan's launch order: the strategy chooses its own, from steps that the plan did not know.
  StepSetting ordered_setting(const BucketPlan& plan) const {
    StepSetting ordered = setting(kOrderedName, kOrderedName);
    ordered.options.plan = BucketPlan{plan.buckets, {}};
    return ordered;
  }

  // Whether this share of the time has passed, by rank 0's clock.
  bool is_past(double share) const { return of_rank_0(group_, seconds_since(started_)) > share * options_.seconds; }

  // How many blocks: more than the fewest until the share of the time is past.
  struct Blocks {
    int most = 0, fewest = 0;
    double share = kAll;
  };

  // is_enough: asked after each block, on every rank; may be empty.
  std::vector<SettingSteps> measure(const std::string& phase, const std::vector<StepSetting>& settings, const Blocks& blocks,
                                    const std::function<bool(const std::vector<SettingSteps>&)>& is_enough = {}) {
    StepBenchOptions steps = options_.steps;
    steps.blocks = blocks.most;
    steps.fewest_blocks = blocks.fewest;
    steps.seconds = of_rank_0(group_, blocks.share * options_.seconds - seconds_since(started_));
    steps.seed = options_.seed;
    steps.on_progress = phase_progress(phase, blocks.most * static_cast<int>(settings.size()));
    steps.is_enough = is_enough;
    return measure_steps(group_, workload_, settings, steps);
  }

  static std::vector<int64_t> bytes_of(const std::vector<PredictedCap>& caps) {
    std::vector<int64_t> bytes;
    for (const PredictedCap& cap : caps) bytes.push_back(cap.cap_bytes);
    return bytes;
  }

  const TensorProfile& tensors() const { return tuning_.profile.tensors; }

  const ProcessGroup& group_;
  Workload& workload_;
  const TuneOptions& options_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  Tuning tuning_;
};

}  // namespace

void show_progress(TuneOptions& options, bool enabled) {
  auto progress = std::make_shared<PhaseProgress>(enabled);
  options.on_progress = [progress](const std::string& phase, int units, const std::string& done) { (*progress)(phase, units, done); };
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
