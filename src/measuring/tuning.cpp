#include "measuring/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "firkin/base/units.h"
#include "firkin/plan/ordered_plan.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

double bare_backward_s(const Tuning& tuning) {
  return tuning.profile.bare_backward_s.value_or(tuning.profile.tensors.backward_s);
}

BucketPlan default_plan(const Tuning& tuning) {
  return assign_buckets(tuning.profile.tensors.bytes, kTorchDefaultCaps);
}

// The fitted model, which refers to `tuning`.
StepModel model_of(const Tuning& tuning) {
  return {.profile = tuning.profile.tensors,
          .costs = tuning.costs.value(),
          .simulation = tuning.fit.options,
          .none_step_s = tuning.none_step_s,
          .bare_backward_s = bare_backward_s(tuning),
          .residual = tuning.fit.residual};
}

}  // namespace

const PredictedCap& choice_of(const Tuning& tuning) {
  return tuning.raced.at(tuning.standing.choice);
}

std::string_view strategy_of(SettingKind kind) {
  switch (kind) {
    case SettingKind::kTorchDefault:
      return "torch";
    case SettingKind::kPlan:
      return "planned";
    case SettingKind::kCap:
    case SettingKind::kChosenCap:
      return "bucketed";
    default:
      return name_of(kind);
  }
}

std::string_view name_of(SettingKind kind) {
  constexpr std::array<std::string_view, 10> kNames = {"none",    "naive",    "flat",       "overlap", "torch default",
                                                       "planned", "bucketed", "chosen cap", "ordered", "sharded"};
  return kNames[static_cast<size_t>(kind)];
}

std::string name_of(const TunedSetting& setting) {
  std::string name(name_of(setting.kind));
  if (setting.kind == SettingKind::kPlan) name += fmt::format(", {} buckets", setting.plan.buckets.size());
  if (setting.kind == SettingKind::kCap) name += fmt::format(" {}", format_bytes(setting.cap_bytes.value()));
  if (!setting.options.empty()) name += " + options";
  return name;
}

const SettingSteps* find_setting(const Tuning& tuning, SettingKind kind, bool with_options) {
  for (size_t i = 0; i < tuning.gain.size(); ++i) {
    const TunedSetting& setting = tuning.gain_settings[i];
    if (setting.kind == kind && setting.options.empty() != with_options) return &tuning.gain[i];
  }
  return nullptr;
}

std::span<const SettingSteps> compared_settings(const Tuning& tuning) {
  return std::span(tuning.gain).last(tuning.compared.size());
}

const SettingSteps& chosen_setting(const Tuning& tuning) {
  const auto same = std::ranges::find(tuning.compared, choice_of(tuning).lowest_cap_bytes, &PredictedCap::lowest_cap_bytes);
  if (same != tuning.compared.end()) return compared_settings(tuning)[static_cast<size_t>(same - tuning.compared.begin())];
  const SettingSteps* chosen = find_setting(tuning, SettingKind::kChosenCap);
  if (chosen == nullptr) throw std::invalid_argument("a tuning whose chosen cap was not measured");
  return *chosen;
}

size_t recommended_setting(const Tuning& tuning) {
  const SettingSteps* recommended = find_setting(tuning, SettingKind::kTorchDefault);
  const bool keeps = recommended != nullptr && keeps_default(tuning.decision.outcome);
  if (!keeps) recommended = &chosen_setting(tuning);
  if (tuning.decision.options) {
    const SettingSteps* with = find_setting(tuning, keeps ? SettingKind::kTorchDefault : SettingKind::kChosenCap, true);
    if (with != nullptr) recommended = with;
  }
  return static_cast<size_t>(recommended - tuning.gain.data());
}

std::optional<double> predicted_step_s(const Tuning& tuning, SettingKind kind) {
  switch (kind) {
    case SettingKind::kChosenCap:
      return choice_of(tuning).time_s;
    case SettingKind::kTorchDefault:
      return predict_step(model_of(tuning), default_plan(tuning));
    case SettingKind::kOrdered:
      return predict_ordered_step(model_of(tuning), *tuning.ordered);
    case SettingKind::kSharded:
      return tuning.sharded->period_s;
    default:
      return std::nullopt;
  }
}

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
    if (!options_.options.empty()) race_options();
    measure_gain();
    decide_on_gain();
    append_what_was_calibrated_on();
    append_level();
    tuning_.complete = true;
  }

 private:
  // Runs a few plans and fits the model to their times. Prefers plans that neither a cap nor PyTorch's default makes, and
  // that are not the ends of the scale, so that what is verified later was not calibrated on.
  void calibrate_on_steps() {
    constexpr size_t kMost = 4;  // one more than the numbers to be determined
    const size_t count = tensors().bytes.size();
    std::vector<TunedSetting> possible;
    for (const BucketPlan& plan :
         calibration_plans(tensors().bytes, tuning_.rule, {one_tensor_per_bucket(count), one_bucket(count), default_plan(tuning_)})) {
      if (meter_.is_possible(plan)) possible.push_back({SettingKind::kPlan, plan});
    }
    for (const int64_t parts : {24, 12, 6, 3}) {
      if (possible.size() < kMost) possible.push_back(by_cap(std::max(tensors().total_bytes() / parts, options_.smallest_cap_bytes)));
    }
    std::vector<TunedSetting> settings = {{SettingKind::kNone}};
    const size_t every = kMost / options_.calibrations;
    for (size_t i = every - 1; i < possible.size(); i += every) {
      settings.push_back(possible[i]);
      tuning_.calibration_plans.push_back(possible[i].plan);
    }
    tuning_.calibration = measure(TuningPhase::kCalibration, settings, options_.calibration_blocks, kCalibrated);
    fit_model();
    meter_.on_partial();
  }

  void fit_model() {
    const CommCosts alone = comm_costs(tuning_.allreduce, tuning_.world_size);
    tuning_.none_step_s = fit_blocks(series_of(tuning_.calibration))[0].median;
    std::vector<MeasuredRun> runs;
    for (size_t i = 0; i < tuning_.calibration_plans.size(); ++i) {
      const double to_none = paired_ratio(tuning_.calibration[i + 1].step_s, tuning_.calibration[0].step_s).ratio;
      const double end_s = bare_backward_s(tuning_) + tuning_.none_step_s * (to_none - 1);
      runs.push_back({.plan = tuning_.calibration_plans[i], .end_s = std::max(end_s, 1e-9)});
    }
    tuning_.fit = calibrate(tensors(), alone, runs);
    tuning_.costs = scaled(alone, tuning_.fit.latency_factor);
    const int64_t smallest = default_caps(tensors().bytes, tuning_.rule).front();
    tuning_.dense_curve = predict_steps(model_of(tuning_), tuning_.rule, dense_caps(smallest, tensors().total_bytes()));
  }

  // Races the caps that are predicted best, of those that make no more buckets than were calibrated on.
  void race_caps() {
    RaceOptions race = {.count = options_.raced, .most_buckets = most_buckets(), .smallest_cap_bytes = options_.smallest_cap_bytes};
    if (!options_.compare) race.wanted = options_.caps;
    tuning_.raced = caps_to_race(model_of(tuning_), tuning_.rule, race);
    std::vector<int64_t> caps;
    for (const PredictedCap& cap : tuning_.raced) caps.push_back(cap.cap_bytes);
    if (const std::vector<int64_t> agreed = meter_.of_rank_0(caps); agreed != caps) {
      tuning_.raced = predict_steps(model_of(tuning_), tuning_.rule, agreed);
    }
    std::vector<TunedSetting> settings;
    for (const PredictedCap& cap : tuning_.raced) settings.push_back(by_cap(cap.cap_bytes));
    const auto is_decided = [&](const std::vector<SettingSteps>& so_far) {
      tuning_.race = so_far;
      tuning_.standing = weigh(tuning_.raced, series_of(so_far), prediction_error());
      return of_rank_0(is_clear(tuning_.standing, so_far.at(0).step_s.size()) ? 1 : 0) == 1;
    };
    const double started_s = meter_.elapsed_s();
    is_decided(measure(TuningPhase::kRace, settings, options_.race_blocks, kRaced, is_decided));
    visit_s_ = (meter_.elapsed_s() - started_s) / static_cast<double>(settings.size() * tuning_.race[0].step_s.size());
    tuning_.standing.choice = static_cast<size_t>(of_rank_0(static_cast<int64_t>(tuning_.standing.choice)));
    meter_.on_partial();
  }

  void compare_caps() {
    const std::vector<int64_t>& sizes = tensors().bytes;
    auto [caps, dropped] = distinct_caps(options_.caps.empty() ? default_caps(sizes, tuning_.rule) : options_.caps, sizes, tuning_.rule);
    tuning_.notes.insert(tuning_.notes.end(), dropped.begin(), dropped.end());
    add_cap(caps, choice_of(tuning_).cap_bytes, sizes, tuning_.rule);
    tuning_.compared = predict_steps(model_of(tuning_), tuning_.rule, caps);
  }

  // A short race chooses the plan: ready times come from steps without communication, too coarse to tell close plans
  // apart.
  void race_ordered() {
    std::vector<BucketPlan> candidates = ordered_candidates(model_of(tuning_), most_buckets());
    candidates.resize(static_cast<size_t>(of_rank_0(std::ssize(candidates))), candidates.back());
    std::vector<TunedSetting> settings;
    for (BucketPlan& plan : candidates) {
      plan = of_rank_0(plan);
      settings.push_back({SettingKind::kOrdered, plan});
    }
    size_t fastest = 0;
    if (candidates.size() > 1 && meter_.elapsed_s() <= kRaced * options_.seconds) {
      const std::vector<SettingSteps> race = measure(TuningPhase::kOrderedRace, settings, {.fewest = 1, .most = 3}, kOrderedRaced);
      const auto typical_s = [](const SettingSteps& each) { return median(each.step_s); };
      fastest = static_cast<size_t>(std::ranges::min_element(race, {}, typical_s) - race.begin());
    }
    tuning_.ordered = candidates[fastest];
  }

  // Chooses the cap of the strategy sharded by prediction. Its collectives are calibrated like the all-reduce.
  void choose_sharded() {
    tuning_.collectives = meter_.measure_collectives();
    const bool is_measured = !tuning_.collectives.empty();
    const StepModel model = model_of(tuning_);
    const ShardedSearch search = {.ranks = tuning_.world_size,
                                  .rule = tuning_.rule,
                                  .search = {.most_buckets = most_buckets(), .simulation = with_agreement(model.simulation, model.costs)}};
    const ShardedCosts costs =
        is_measured ? calibrated(sharded_costs(tuning_.collectives), model.costs, tuning_.fit.latency_factor) : halves_of(model.costs);
    PredictedSharded sharded = predict_sharded(model.profile, costs, search, 0, *options_.sharded);
    sharded.halves = !is_measured;
    sharded.bound_s = step_of_period(model, sharded.bound_s);
    sharded.period_s = step_of_period(model, sharded.period_s);
    sharded.bucketed_period_s = choice_of(tuning_).time_s;
    if (tuning_.ordered) sharded.gain_over_ordered = 1 - sharded.period_s / predict_ordered_step(model, *tuning_.ordered);
    sharded.cap_bytes = of_rank_0(sharded.cap_bytes);
    tuning_.sharded = sharded;
  }

  // The standard error of the prior that predictions are. Where the calibration cannot be relied on, so little is known of
  // the model's errors that the blocks alone decide.
  double prediction_error() const {
    constexpr double kUnknown = 0.5;
    return is_doubtful(tuning_.fit) ? kUnknown : kPredictionError;
  }

  // Options that a program could set besides the cap, one by one, each beside the chosen cap alone. What wins is measured
  // again in the blocks of the gain.
  void race_options() {
    constexpr double kShare = 0.25;  // of the time that is left
    constexpr PhaseOptions::Blocks kBlocks = {.fewest = static_cast<int>(kFewestSamples), .most = 8};
    const double remaining_s = options_.seconds - meter_.elapsed_s();
    const auto visits = static_cast<double>((kBlocks.fewest + 2) * (std::ssize(options_.options) + 1));  // and those that try each
    if (visits * visit_s_ > kShare * remaining_s) {
      tuning_.notes.emplace_back(UntriedOptions());
      return;
    }
    std::vector<TunedSetting> settings = {chosen_cap()};
    for (const std::string& option : meter_.possible_options(settings[0], options_.options)) {
      settings.push_back(chosen_cap());
      settings.back().options = {option};
    }
    if (settings.size() == 1) return;
    const double seconds = options_.seconds - (1 - kShare) * remaining_s - meter_.elapsed_s();
    const std::vector<SettingSteps> steps =
        meter_.measure(TuningPhase::kOptionsRace, settings, {.fewest = kBlocks.fewest, .most = kBlocks.most, .seconds = seconds},
                       [](const auto& /*so_far*/) { return false; });
    for (size_t i = 1; i < steps.size(); ++i) {
      const std::string& option = settings[i].options[0];
      const PairedRatio gain = paired_ratio(steps[i].step_s, steps[0].step_s);
      const bool wins = of_rank_0(is_worth_setting(gain) ? 1 : 0) == 1;
      if (wins) tuning_.options.push_back(option);
      tuning_.notes.emplace_back(OptionRace{option, gain, wins});
    }
  }

  std::vector<TunedSetting> gain_settings() const {
    std::vector<TunedSetting> settings = {{SettingKind::kNone}};  // first: others are compared with it
    if (options_.compare) settings.insert(settings.end(), {{SettingKind::kNaive}, {SettingKind::kFlat}, {SettingKind::kOverlap}});
    settings.push_back({SettingKind::kTorchDefault, default_plan(tuning_)});
    if (!tuning_.options.empty()) {
      for (TunedSetting setting : {settings.back(), chosen_cap()}) {
        setting.options = tuning_.options;
        settings.push_back(setting);
      }
    }
    if (tuning_.ordered) settings.push_back({SettingKind::kOrdered, *tuning_.ordered});
    if (options_.measures_sharded) {
      settings.push_back(by_cap(tuning_.sharded->cap_bytes));
      settings.back().kind = SettingKind::kSharded;
    }
    for (const PredictedCap& cap : tuning_.compared) settings.push_back(by_cap(cap.cap_bytes));
    if (tuning_.compared.empty()) settings.push_back(chosen_cap());
    return settings;
  }

  // Measures the gain, and what it is to be compared with, in steps that had no part in the choice. Without a number of
  // blocks, until the gain is settled, or until that would take longer than there is time. See Note [Stopping when
  // settled] in plan/decision.h.
  void measure_gain() {
    constexpr int kFirstCheck = 12, kMost = 1 << 20;
    const PhaseOptions::GainBlocks& blocks = options_.gain_blocks;
    const int most = blocks.most.value_or(kMost);
    ended_ = blocks.most ? EndOfBlocks::kLimit : EndOfBlocks::kTime;
    int next_check = kFirstCheck, next_partial = 1;
    const double started_s = meter_.elapsed_s();
    const auto is_enough = [&](const std::vector<SettingSteps>& so_far) {
      const auto done = static_cast<int>(so_far[0].step_s.size());
      if (done >= next_partial && done != most) {  // often enough to lose little, seldom enough to cost nothing
        next_partial = done + std::max(done / 4, 1);
        tuning_.gain = so_far;
        meter_.on_partial();
      }
      if (blocks.most || done < next_check) return false;
      next_check = 2 * done;
      tuning_.gain = so_far;
      const double needed = blocks_needed();
      if (of_rank_0(needed == 0 ? 1 : 0) == 1) {
        ended_ = EndOfBlocks::kSettled;
        return true;
      }
      const double now_s = meter_.elapsed_s(), block_s = (now_s - started_s) / done;
      return of_rank_0((needed - done) * block_s > options_.seconds - now_s ? 1 : 0) == 1;
    };
    tuning_.gain_settings = gain_settings();
    tuning_.gain = measure(TuningPhase::kGain, tuning_.gain_settings, {.fewest = blocks.fewest, .most = most}, kAll, is_enough);
  }

  // How many blocks will probably settle what the cap and the options gain; 0: these do.
  double blocks_needed() const {
    double most = 0;
    const auto count = [&](const SettingSteps* steps, const SettingSteps* others) {
      if (steps == nullptr || others == nullptr) return;
      const Outlook of_pair = outlook(steps->step_s, others->step_s);
      if (!of_pair.settled) most = std::max(most, of_pair.blocks_needed);
    };
    const SettingSteps* chosen = &chosen_setting(tuning_);
    if (chosen_cap().plan != default_plan(tuning_)) count(chosen, find_setting(tuning_, SettingKind::kTorchDefault));
    count(find_setting(tuning_, SettingKind::kChosenCap, true), chosen);
    return most;
  }

  void decide_on_gain() {
    const auto with_options = [&](SettingKind kind) {
      const SettingSteps* setting = find_setting(tuning_, kind, true);
      return setting == nullptr ? std::vector<double>() : setting->step_s;
    };
    DecisionInputs inputs{.caps = tuning_.raced, .standing = tuning_.standing, .ended = ended_};
    inputs.confirmation = {.none_s = tuning_.gain.at(0).step_s, .default_s = {}, .choice_s = chosen_setting(tuning_).step_s};
    inputs.confirmation.default_with_options_s = with_options(SettingKind::kTorchDefault);
    inputs.confirmation.choice_with_options_s = with_options(SettingKind::kChosenCap);
    for (const std::string& option : tuning_.options)
      inputs.options += fmt::format("{}{}=True", inputs.options.empty() ? "" : ", ", option);
    if (const SettingSteps* by_default = find_setting(tuning_, SettingKind::kTorchDefault)) {
      inputs.confirmation.default_s = by_default->step_s;
      if (!is_doubtful(tuning_.fit)) inputs.default_predicted_s = predicted_step_s(tuning_, SettingKind::kTorchDefault);
      for (const PredictedCap& cap : tuning_.raced) inputs.as_default.push_back(by_cap(cap.cap_bytes).plan == default_plan(tuning_));
    }
    tuning_.decision = decide(inputs, tuning_.none_step_s);
  }

  void append_what_was_calibrated_on() {
    const auto check = [&](const BucketPlan& plan, std::optional<int64_t> cap_bytes) {
      if (calibrated_on(tuning_.calibration_plans, plan)) tuning_.notes.emplace_back(CalibrationBuckets{cap_bytes});
    };
    for (const PredictedCap& cap : tuning_.compared.empty() ? tuning_.raced : tuning_.compared) {
      check(by_cap(cap.cap_bytes).plan, cap.cap_bytes);
    }
    if (find_setting(tuning_, SettingKind::kTorchDefault) != nullptr) check(default_plan(tuning_), std::nullopt);
  }

  // A note if a step takes longer or shorter than during the calibration.
  void append_level() {
    constexpr double kFar = 0.05;
    const double level = tuning_.decision.level.value_or(1);
    if (std::abs(level - 1) >= kFar) tuning_.notes.emplace_back(LevelChange{level});
  }

  TunedSetting by_cap(int64_t cap_bytes) const {
    return {SettingKind::kCap, assign_buckets(tensors().bytes, with_cap(tuning_.rule, cap_bytes)), cap_bytes};
  }
  TunedSetting chosen_cap() const {
    TunedSetting setting = by_cap(choice_of(tuning_).cap_bytes);
    setting.kind = SettingKind::kChosenCap;
    return setting;
  }

  std::vector<SettingSteps> measure(
      TuningPhase phase, const std::vector<TunedSetting>& settings, PhaseOptions::Blocks blocks, double share,
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
  int64_t most_buckets() const { return most_calibrated_buckets(tuning_.calibration_plans); }

  const PhaseOptions& options_;
  const StepMeter& meter_;
  Tuning& tuning_;
  double visit_s_ = 0;  // of one setting in a block of the race
  EndOfBlocks ended_ = EndOfBlocks::kSettled;
};

}  // namespace

void run_phases(const PhaseOptions& options, const StepMeter& meter, Tuning& tuning) {
  Phases(options, meter, tuning).run();
}

}  // namespace firkin
