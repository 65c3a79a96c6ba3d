#include "bench/tune_result.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "firkin/base/units.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

void compare_with_torch_default(TuneResult& result, const SettingNames& settings) {
  if (!settings.torch_default) return;
  const std::vector<double>& reference = result.steps.step_s[*settings.torch_default];
  const auto ratio = [&](size_t setting) { return paired_ratio(result.steps.step_s[setting], reference); };
  result.predicted_to_torch_default = ratio(settings.strategies.size() + result.best_predicted);
  if (settings.planned) result.planned->to_torch_default = ratio(*settings.planned);
  if (settings.ordered) result.ordered->to_torch_default = ratio(*settings.ordered);
  result.torch_default->to_torch_default = PairedRatio{1, {1, 1}};
}

void compare_with_best_cap(TuneResult& result, const SettingNames& settings) {
  const std::vector<double>& reference = result.steps.step_s[settings.strategies.size() + result.best_predicted];
  const auto ratio = [&](size_t setting) { return paired_ratio(result.steps.step_s[setting], reference); };
  if (settings.ordered) {
    result.ordered->measured = result.strategies[*settings.ordered];
    result.ordered_to_best_cap = ratio(*settings.ordered);
  }
  for (size_t i = 0; i < settings.hooks.size(); ++i) {
    result.hooks[i].measured = result.strategies[settings.hooks[i]];
    result.hooks[i].to_best_cap = ratio(settings.hooks[i]);
  }
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

void add_steps(TuneResult& result, const StepBenchResult& steps, const SettingNames& settings,
               const std::vector<CapPrediction>& predicted) {
  const BlockFit fit = fit_blocks(steps.step_s);
  const size_t first_cap = settings.strategies.size();
  result.steps = steps;
  result.blocks_done = static_cast<int>(steps.step_s[0].size());
  result.strategies.clear();
  result.curve.clear();
  for (size_t i = 0; i < first_cap; ++i) result.strategies.push_back(measurement_of(steps, fit, i, settings.strategies[i]));
  for (size_t i = 0; i < settings.caps.size(); ++i) {
    const std::string name = fmt::format("bucketed {}", format_bytes(settings.caps[i]));
    result.curve.push_back({predicted[i], measurement_of(steps, fit, first_cap + i, name)});
  }

  const std::vector<std::vector<double>> cap_steps(steps.step_s.begin() + static_cast<std::ptrdiff_t>(first_cap), steps.step_s.end());
  const IndifferenceSet indifference = indifference_set(cap_steps, std::span(fit).subspan(first_cap));
  result.best_predicted = static_cast<size_t>(std::ranges::find(settings.caps, settings.best_cap) - settings.caps.begin());
  result.best_measured = indifference.best;
  result.indifference = indifference.members;
  result.predicted_to_best = indifference.to_best[result.best_predicted];

  if (settings.torch_default) result.torch_default->measured = result.strategies[*settings.torch_default];
  if (settings.planned) {
    const size_t i = *settings.planned;
    result.planned->measured = i < first_cap ? result.strategies[i] : result.curve[i - first_cap].measured;
  }
  compare_with_torch_default(result, settings);
  compare_with_best_cap(result, settings);
}

}  // namespace firkin
