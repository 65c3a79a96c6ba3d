#include "measuring/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

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

BucketPlan plan_under(const Tuning& tuning, int64_t cap_bytes) {
  return assign_buckets(tuning.profile.tensors.bytes, with_cap(tuning.rule, cap_bytes));
}

void note_what_was_calibrated_on(Tuning& tuning) {
  const auto check = [&](const std::string& name, const BucketPlan& plan) {
    if (!calibrated_on(tuning.calibration_plans, plan)) return;
    tuning.notes.push_back(
        fmt::format("the model was also calibrated on the buckets of {}, so their step does not test the prediction", name));
  };
  for (const PredictedCap& cap : tuning.compared.empty() ? tuning.raced : tuning.compared) {
    check(format_bytes(cap.cap_bytes), plan_under(tuning, cap.cap_bytes));
  }
  if (find_setting(tuning.gain, kTorchDefaultName) != nullptr) check("PyTorch's default", default_plan(tuning));
}

// Notes if a step takes longer or shorter than during the calibration.
void note_level(Tuning& tuning) {
  constexpr double kFar = 0.05;
  const double level = tuning.decision.level.value_or(1);
  if (std::abs(level - 1) < kFar) return;
  tuning.notes.push_back(fmt::format(
      "a step without communication took {:.0f} % {} than when the model was calibrated: predicted times may be off by up to about that "
      "much; what was compared in the same blocks is not affected",
      100 * std::abs(level - 1), level > 1 ? "longer" : "less"));
}

}  // namespace

const SettingSteps* find_setting(const std::vector<SettingSteps>& settings, std::string_view name) {
  const auto found = std::ranges::find(settings, name, &SettingSteps::name);
  return found == settings.end() ? nullptr : &*found;
}

std::span<const SettingSteps> compared_settings(const Tuning& tuning) {
  return std::span(tuning.gain).last(tuning.compared.size());
}

const SettingSteps& chosen_setting(const Tuning& tuning) {
  const auto same = std::ranges::find(tuning.compared, choice_of(tuning).lowest_cap_bytes, &PredictedCap::lowest_cap_bytes);
  if (same != tuning.compared.end()) return compared_settings(tuning)[static_cast<size_t>(same - tuning.compared.begin())];
  const SettingSteps* chosen = find_setting(tuning.gain, kChosenCapName);
  if (chosen == nullptr) throw std::invalid_argument("a tuning whose chosen cap was not measured");
  return *chosen;
}

std::optional<double> predicted_step_s(const Tuning& tuning, const SettingSteps& setting) {
  if (setting.name == kChosenCapName) return choice_of(tuning).time_s;
  if (setting.name == kTorchDefaultName) return predict_step(model_of(tuning), default_plan(tuning));
  if (setting.name == kOrderedName) return predict_ordered_step(model_of(tuning), *tuning.ordered);
  if (setting.name == kShardedName) return tuning.sharded->period_s;
  return std::nullopt;
}

std::string cap_setting_name(int64_t cap_bytes) {
  return fmt::format("bucketed {}", format_bytes(cap_bytes));
}

std::vector<BucketPlan> plans_to_calibrate_on(const TensorProfile& profile, const CapOptions& rule) {
  const size_t tensors = profile.bytes.size();
  return calibration_plans(profile.bytes, rule,
                           {one_tensor_per_bucket(tensors), one_bucket(tensors), assign_buckets(profile.bytes, kTorchDefaultCaps)});
}

void calibrate(Tuning& tuning) {
  if (tuning.calibration.size() != tuning.calibration_plans.size() + 1)
    throw std::invalid_argument("a calibration on other steps than its plans'");
  const TensorProfile& profile = tuning.profile.tensors;
  const CommCosts alone = comm_costs(tuning.allreduce, tuning.world_size);
  tuning.none_step_s = fit_blocks(series_of(tuning.calibration))[0].median;
  std::vector<MeasuredRun> runs;
  for (size_t i = 0; i < tuning.calibration_plans.size(); ++i) {
    const double to_none = paired_ratio(tuning.calibration[i + 1].step_s, tuning.calibration[0].step_s).ratio;
    const double end_s = bare_backward_s(tuning) + tuning.none_step_s * (to_none - 1);
    runs.push_back({.plan = tuning.calibration_plans[i], .end_s = std::max(end_s, 1e-9)});
  }
  tuning.fit = calibrate(profile, alone, runs);
  tuning.costs = calibrated(alone, tuning.fit);
  const int64_t smallest = default_caps(profile.bytes, tuning.rule).front();
  tuning.dense_curve = predict_steps(model_of(tuning), tuning.rule, dense_caps(smallest, profile.total_bytes()));
}

StepModel model_of(const Tuning& tuning) {
  return {.profile = tuning.profile.tensors,
          .costs = tuning.costs.value(),
          .simulation = tuning.fit.options,
          .none_step_s = tuning.none_step_s,
          .bare_backward_s = bare_backward_s(tuning),
          .residual = tuning.fit.residual};
}

void choose_race(Tuning& tuning, RaceOptions options) {
  options.most_buckets = most_calibrated_buckets(tuning.calibration_plans);
  tuning.raced = caps_to_race(model_of(tuning), tuning.rule, options);
}

bool is_clear(Tuning& tuning) {
  tuning.standing = weigh(tuning.raced, series_of(tuning.race));
  return firkin::is_clear(tuning.standing, tuning.race.at(0).step_s.size());
}

const PredictedCap& choice_of(const Tuning& tuning) {
  return tuning.raced.at(tuning.standing.choice);
}

void tune_sharded(Tuning& tuning, const TrainedMemory& trained) {
  const StepModel model = model_of(tuning);
  const ShardedSearch search = {.ranks = tuning.world_size,
                                .rule = tuning.rule,
                                .search = {.most_buckets = most_calibrated_buckets(tuning.calibration_plans),
                                           .simulation = with_agreement(model.simulation, model.costs)}};
  const ShardedCosts costs = tuning.collectives.empty()
                                 ? halves_of(*tuning.costs)
                                 : calibrated(sharded_costs(tuning.collectives), *tuning.costs, tuning.fit.latency_factor);
  PredictedSharded sharded = predict_sharded(model.profile, costs, search, 0, trained);
  sharded.halves = tuning.collectives.empty();
  sharded.bound_s = step_of_period(model, sharded.bound_s);
  sharded.period_s = step_of_period(model, sharded.period_s);
  sharded.bucketed_period_s = choice_of(tuning).time_s;
  if (tuning.ordered) sharded.gain_over_ordered = 1 - sharded.period_s / predict_ordered_step(model, *tuning.ordered);
  tuning.sharded = sharded;
}

void decide(Tuning& tuning) {
  DecisionInputs inputs{.caps = tuning.raced, .standing = tuning.standing};
  inputs.confirmation = {.none_s = tuning.gain.at(0).step_s, .default_s = {}, .choice_s = chosen_setting(tuning).step_s};
  if (const SettingSteps* by_default = find_setting(tuning.gain, kTorchDefaultName)) {
    inputs.confirmation.default_s = by_default->step_s;
    inputs.default_predicted_s = predicted_step_s(tuning, *by_default);
    for (const PredictedCap& cap : tuning.raced) {
      inputs.as_default.push_back(plan_under(tuning, cap.cap_bytes) == default_plan(tuning));
    }
  }
  tuning.decision = decide(inputs, tuning.none_step_s);
  note_what_was_calibrated_on(tuning);
  note_level(tuning);
  tuning.complete = true;
}

}  // namespace firkin
