#include "measuring/phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "firkin/plan/decision.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// The share of the time that may have passed when a phase ends.
constexpr double kCalibrated = 0.4, kRaced = 0.6, kOrderedRaced = 0.7, kAll = 1;

class Phases {
 public:
  Phases(const PhaseOptions& options, const StepMeter& meter, Tuning& tuning) : options_(options), meter_(meter), tuning_(tuning) {}

  void run() {
    calibrate_on_steps();
    race_caps();
    if (options_.compare) compare_caps();
    if (options_.ordered) race_ordered();
    if (options_.sharded) choose_sharded();
    measure_gain();
    decide(tuning_);
  }

 private:
  void calibrate_on_steps() {
    constexpr size_t kMost = 4;  // one more than the numbers to be determined
    std::vector<TunedSetting> possible;
    for (const BucketPlan& plan : plans_to_calibrate_on(tensors(), tuning_.rule)) {
      if (meter_.is_possible(plan)) possible.push_back({fmt::format("planned, {} buckets", plan.buckets.size()), "planned", plan});
    }
    for (const int64_t parts : {24, 12, 6, 3}) {
      if (possible.size() < kMost) possible.push_back(by_cap(std::max(tensors().total_bytes() / parts, options_.smallest_cap_bytes)));
    }
    std::vector<TunedSetting> settings = {none()};
    const size_t every = kMost / options_.calibrations;
    for (size_t i = every - 1; i < possible.size(); i += every) {
      settings.push_back(possible[i]);
      tuning_.calibration_plans.push_back(possible[i].plan);
    }
    tuning_.calibration = measure("calibrating", settings, options_.calibration_blocks, kCalibrated);
    calibrate(tuning_);
    meter_.tell();
  }

  void race_caps() {
    RaceOptions race = {.count = options_.raced, .smallest_cap_bytes = options_.smallest_cap_bytes};
    if (!options_.compare) race.wanted = options_.caps;
    choose_race(tuning_, race);
    std::vector<int64_t> caps;
    for (const PredictedCap& cap : tuning_.raced) caps.push_back(cap.cap_bytes);
    if (const std::vector<int64_t> agreed = meter_.of_rank_0(caps); agreed != caps) {
      tuning_.raced = predict_steps(model_of(tuning_), tuning_.rule, agreed);
    }
    std::vector<TunedSetting> settings;
    for (const PredictedCap& cap : tuning_.raced) settings.push_back(by_cap(cap.cap_bytes));
    const auto is_decided = [&](const std::vector<SettingSteps>& so_far) {
      tuning_.race = so_far;
      return of_rank_0(is_clear(tuning_) ? 1 : 0) == 1;
    };
    is_decided(measure("racing the best caps", settings, options_.race_blocks, kRaced, is_decided));
    tuning_.standing.choice = static_cast<size_t>(of_rank_0(static_cast<int64_t>(tuning_.standing.choice)));
    meter_.tell();
  }

  void compare_caps() {
    const std::vector<int64_t>& sizes = tensors().bytes;
    auto [caps, notes] = distinct_caps(options_.caps.empty() ? default_caps(sizes, tuning_.rule) : options_.caps, sizes, tuning_.rule);
    tuning_.notes.insert(tuning_.notes.end(), notes.begin(), notes.end());
    add_cap(caps, choice_of(tuning_).cap_bytes, sizes, tuning_.rule);
    tuning_.compared = predict_steps(model_of(tuning_), tuning_.rule, caps);
  }

  // A short race chooses the plan: ready times come from steps without communication, too coarse to tell close plans
  // apart.
  void race_ordered() {
    std::vector<BucketPlan> candidates = ordered_candidates(model_of(tuning_), most_calibrated_buckets(tuning_.calibration_plans));
    candidates.resize(static_cast<size_t>(of_rank_0(std::ssize(candidates))), candidates.back());
    std::vector<TunedSetting> settings;
    for (BucketPlan& plan : candidates) {
      plan = of_rank_0(plan);
      settings.push_back({kOrderedName, kOrderedName, plan});
    }
    size_t fastest = 0;
    if (candidates.size() > 1 && meter_.elapsed_s() <= kRaced * options_.seconds) {
      const std::vector<SettingSteps> race = measure("racing ordered's buckets", settings, {.fewest = 1, .most = 3}, kOrderedRaced);
      const auto typical_s = [](const SettingSteps& each) { return median(each.step_s); };
      fastest = static_cast<size_t>(std::ranges::min_element(race, {}, typical_s) - race.begin());
    }
    tuning_.ordered = candidates[fastest];
  }

  void choose_sharded() {
    tuning_.collectives = meter_.measure_collectives();
    tune_sharded(tuning_, *options_.sharded);
    tuning_.sharded->cap_bytes = of_rank_0(tuning_.sharded->cap_bytes);
  }

  std::vector<TunedSetting> gain_settings() const {
    std::vector<TunedSetting> settings = {none()};  // first: others are compared with it
    for (const char* name : {"naive", "flat", "overlap"}) {
      if (options_.compare) settings.push_back({name, name});
    }
    settings.push_back({kTorchDefaultName, "torch", assign_buckets(tensors().bytes, kTorchDefaultCaps)});
    if (tuning_.ordered) settings.push_back({kOrderedName, kOrderedName, *tuning_.ordered});
    if (options_.measures_sharded) {
      settings.push_back(by_cap(tuning_.sharded->cap_bytes));
      settings.back().name = settings.back().strategy = kShardedName;
    }
    for (const PredictedCap& cap : tuning_.compared) settings.push_back(by_cap(cap.cap_bytes));
    if (tuning_.compared.empty()) {
      settings.push_back(by_cap(choice_of(tuning_).cap_bytes));
      settings.back().name = kChosenCapName;
    }
    return settings;
  }

  // Measures the gain, and what it is to be compared with, in steps that had no part in the choice.
  void measure_gain() {
    const auto most = static_cast<size_t>(options_.gain_blocks.most);
    const size_t every = std::max<size_t>(most / 10, 1);  // often enough to lose little, seldom enough to cost nothing
    tuning_.gain = measure("measuring the gain", gain_settings(), options_.gain_blocks, kAll, [&](const std::vector<SettingSteps>& so_far) {
      const size_t done = so_far[0].step_s.size();
      if (done == most || (done > 1 && done % every != 0)) return false;
      tuning_.gain = so_far;
      meter_.tell();
      return false;
    });
  }

  static TunedSetting none() { return {"none", "none"}; }
  TunedSetting by_cap(int64_t cap_bytes) const {
    return {cap_setting_name(cap_bytes), "bucketed", assign_buckets(tensors().bytes, with_cap(tuning_.rule, cap_bytes)), cap_bytes};
  }

  std::vector<SettingSteps> measure(
      const std::string& phase, const std::vector<TunedSetting>& settings, PhaseOptions::Blocks blocks, double share,
      const std::function<bool(const std::vector<SettingSteps>&)>& is_enough = [](const auto& /*so_far*/) { return false; }) const {
    const double seconds = share * options_.seconds - meter_.elapsed_s();
    return meter_.measure(phase, settings, {.fewest = blocks.fewest, .most = blocks.most, .seconds = seconds}, is_enough);
  }

  int64_t of_rank_0(int64_t value) const { return meter_.of_rank_0({value})[0]; }
  BucketPlan of_rank_0(const BucketPlan& plan) const {
    std::vector<int64_t> counts;
    for (const Bucket& bucket : plan.buckets) counts.push_back(bucket.count);
    BucketPlan agreed = plan_of_counts(meter_.of_rank_0(std::move(counts)));
    agreed.launch_order = meter_.of_rank_0(plan.launch_order);
    return agreed;
  }

  const TensorProfile& tensors() const { return tuning_.profile.tensors; }

  const PhaseOptions& options_;
  const StepMeter& meter_;
  Tuning& tuning_;
};

}  // namespace

void run_phases(const PhaseOptions& options, const StepMeter& meter, Tuning& tuning) {
  Phases(options, meter, tuning).run();
}

}  // namespace firkin
