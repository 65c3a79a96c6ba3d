#include "bench/tune_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

void compare_plans(TuneResult& result, const SettingNames& settings) {
  const auto& step_s = result.steps.step_s;
  const auto cap = std::ranges::find(settings.caps, settings.best_cap) - settings.caps.begin();
  const std::vector<double>& of_choice = step_s[settings.strategies.size() + static_cast<size_t>(cap)];
  if (settings.torch_default) {
    result.torch_default->measured = result.strategies[*settings.torch_default];
    result.torch_default->to_torch_default = PairedRatio{1, {1, 1}};
  }
  if (settings.ordered) {
    result.ordered->measured = result.strategies[*settings.ordered];
    result.ordered_to_best_cap = paired_ratio(step_s[*settings.ordered], of_choice);
    if (settings.torch_default) result.ordered->to_torch_default = paired_ratio(step_s[*settings.ordered], step_s[*settings.torch_default]);
  }
  for (size_t i = 0; i < settings.hooks.size(); ++i) {
    result.hooks[i].measured = result.strategies[settings.hooks[i]];
    result.hooks[i].to_best_cap = paired_ratio(step_s[settings.hooks[i]], of_choice);
  }
  DecisionInputs inputs{.caps = result.race.caps, .race_s = result.race.steps.step_s};
  inputs.confirmation = {.none_s = step_s[0], .default_s = {}, .choice_s = of_choice};
  if (settings.torch_default) {
    inputs.confirmation.default_s = step_s[*settings.torch_default];
    inputs.default_predicted_s = result.torch_default->predicted_s;
    for (const CapPrediction& raced : result.race.caps) {
      CapOptions options = settings.rule;
      options.cap_bytes = raced.cap_bytes;
      inputs.as_default.push_back(assign_buckets(result.profile.tensors.bytes, options) == result.torch_default->plan);
    }
  }
  result.decision = decide(inputs, result.calibration.none_step_s);
}

}  // namespace

Measurement measurement_of(const StepBenchResult& steps, const BlockFit& fit, size_t setting, const std::string& name) {
  return {.name = name,
          .buckets = steps.buckets[setting],
          .step_s = fit[setting].median,
          .step_ci = fit[setting].interval,
          .comm_s = median(steps.comm_s[setting]),
          .to_none = paired_ratio(steps.step_s[setting], steps.step_s[0])};
}

void add_curve(TuneResult& result, const std::vector<CapPrediction>& predicted, const std::vector<std::vector<double>>& step_s,
               const std::vector<Measurement>& measured) {
  result.curve.clear();
  for (size_t i = 0; i < predicted.size(); ++i) result.curve.push_back({predicted[i], measured[i]});
  const IndifferenceSet indifference = indifference_set(step_s);
  result.best_predicted = weigh(predicted).choice;
  result.best_measured = indifference.best;
  result.indifference = indifference.members;
  result.predicted_to_best = indifference.to_best[result.best_predicted];
}

void add_steps(TuneResult& result, const StepBenchResult& steps, const SettingNames& settings,
               const std::vector<CapPrediction>& predicted) {
  const BlockFit fit = fit_blocks(steps.step_s);
  const size_t first_cap = settings.strategies.size();
  result.steps = steps;
  result.blocks_done = static_cast<int>(steps.step_s[0].size());
  result.strategies.clear();
  for (size_t i = 0; i < first_cap; ++i) result.strategies.push_back(measurement_of(steps, fit, i, settings.strategies[i]));
  if (settings.caps.size() > 1) {
    std::vector<Measurement> measured;
    for (size_t i = 0; i < settings.caps.size(); ++i) {
      measured.push_back(measurement_of(steps, fit, first_cap + i, fmt::format("bucketed {}", format_bytes(settings.caps[i]))));
    }
    add_curve(result, predicted, {steps.step_s.begin() + static_cast<std::ptrdiff_t>(first_cap), steps.step_s.end()}, measured);
  } else {
    result.strategies.push_back(measurement_of(steps, fit, first_cap, std::string(kChoiceName)));
  }
  compare_plans(result, settings);
}

}  // namespace firkin
