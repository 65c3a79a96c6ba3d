// Fills the sections of a results.json from a tuning, as far as that has come.
#include <algorithm>
#include <cmath>
#include <span>

#include "firkin/base/units.h"
#include "firkin/stats/block_fit.h"
#include "firkin/stats/paired.h"
#include "firkin/stats/summary.h"
#include "results/results.h"

namespace firkin {
namespace {

CurveRow predicted_row(const PredictedCap& cap) {
  return {.cap_mib = mib(cap.cap_bytes),
          .buckets = cap.buckets,
          .predicted_s = cap.time_s,
          .predicted_range_s = Interval{cap.low_s, cap.high_s}};
}

std::vector<CurveRow> curve_rows(std::span<const PredictedCap> caps, std::span<const SettingFit> fit) {
  std::vector<CurveRow> rows;
  for (size_t i = 0; i < caps.size(); ++i) {
    CurveRow& row = rows.emplace_back(predicted_row(caps[i]));
    row.measured_s = fit[i].median;
    row.measured_ci_s = fit[i].interval;
    row.error = caps[i].time_s / fit[i].median - 1;
  }
  return rows;
}

// Adds the settings of `gain` that are no caps of the curve.
void add_strategies(const Tuning& tuning, const BlockFit& fit, Results& results) {
  for (size_t i = 0; i < tuning.gain.size() - tuning.compared.size(); ++i) {
    const SettingSteps& setting = tuning.gain[i];
    StrategyRow row{.strategy = setting.name, .buckets = setting.buckets, .measured_s = fit[i].median, .measured_ci_s = fit[i].interval};
    row.predicted_s = predicted_step_s(tuning, setting);
    row.exposed_s = fit[0].median * (paired_ratio(setting.step_s, tuning.gain[0].step_s).ratio - 1);
    if (!setting.comm_s.empty()) row.comm_s = median(setting.comm_s);
    results.strategies.push_back(row);
  }
}

void add_step_samples(const Tuning& tuning, Results& results) {
  StepSamples samples;
  samples.calibration_step_s = series_of(tuning.calibration);
  samples.race_step_s = series_of(tuning.race);
  for (const SettingSteps& setting : tuning.gain) {
    samples.settings.push_back(setting.name);
    samples.step_s.push_back(setting.step_s);
    if (!setting.comm_s.empty()) samples.comm_s.push_back(setting.comm_s);
    if (!setting.raw_step_s.empty()) samples.raw_step_s_by_rank.push_back(setting.raw_step_s);
  }
  results.step_samples = std::move(samples);
}

PairedRatio gain_over(const SettingSteps& setting, const SettingSteps& other) {
  return paired_ratio(setting.step_s, other.step_s);
}

// The best of the curve's caps, predicted and measured, and those that cannot be told apart from it.
void add_best(const Tuning& tuning, Results& results) {
  const bool compares = !tuning.compared.empty();
  const IndifferenceSet measured = indifference_set(series_of(compares ? compared_settings(tuning) : tuning.race));
  const size_t predicted = weigh(compares ? tuning.compared : tuning.raced).choice;
  results.best_predicted = results.curve[predicted];
  results.best_measured = results.curve[measured.best];
  for (const size_t i : measured.members) results.indifference_set.push_back(results.curve[i].cap_mib);
  // Noise can make the paired ratio come out below 1; nothing is lost then.
  results.regret = std::max(0.0, measured.to_best[predicted].ratio - 1);
}

void add_answer(const Tuning& tuning, const BlockFit& fit, Results& results) {
  add_best(tuning, results);
  const SettingSteps& chosen = chosen_setting(tuning);
  const auto measured_s = [&](const SettingSteps& setting) { return fit[static_cast<size_t>(&setting - tuning.gain.data())].median; };
  results.decision = tuning.decision;
  results.decision->measured_s = measured_s(chosen);
  results.over_default = tuning.decision.over_default;
  if (const SettingSteps* ordered = find_setting(tuning.gain, kOrderedName)) results.ordered_over_best_cap = gain_over(*ordered, chosen);
  results.sharded = tuning.sharded;
  if (const SettingSteps* sharded = find_setting(tuning.gain, kShardedName)) results.sharded_over_best_cap = gain_over(*sharded, chosen);
  for (const HookTuning& hook : tuning.hooks) {
    const SettingSteps& hooked = *find_setting(tuning.gain, hook_setting_name(hook));
    const PairedRatio gain = gain_over(hooked, chosen);
    results.hooks.push_back({.hook = hook.hook,
                             .cap_mib = mib(hook.predicted.cap_bytes),
                             .predicted_s = hook.predicted.time_s,
                             .measured_s = measured_s(hooked),
                             .ratio = gain.ratio,
                             .ratio_ci = gain.interval});
  }
}

}  // namespace

void add_sections(const Tuning& tuning, Results& results) {
  results.complete = tuning.complete;
  results.notes.insert(results.notes.end(), tuning.notes.begin(), tuning.notes.end());
  if (!tuning.profile.tensors.names.empty()) results.profile = tuning.profile;
  results.allreduce = tuning.allreduce;
  if (!tuning.allreduce.empty()) results.alpha_beta = fit_alpha_beta(comm_costs(tuning.allreduce, tuning.world_size).isolated.points());
  if (!tuning.calibration.empty()) {
    const BlockFit fit = fit_blocks(series_of(tuning.calibration));
    results.calibration = CalibrationSection{.runs = {}, .fit = tuning.fit};
    for (size_t i = 1; i < fit.size(); ++i) {
      results.calibration->runs.push_back({tuning.calibration[i].name, tuning.calibration[i].buckets, fit[i].median});
    }
  }
  for (const PredictedCap& cap : tuning.dense_curve) results.dense_curve.push_back(predicted_row(cap));
  if (tuning.race.empty()) return;
  results.curve = curve_rows(tuning.raced, fit_blocks(series_of(tuning.race)));
  if (tuning.gain.empty()) return;
  const BlockFit fit = fit_blocks(series_of(tuning.gain));
  if (!tuning.compared.empty()) results.curve = curve_rows(tuning.compared, std::span(fit).last(tuning.compared.size()));
  add_strategies(tuning, fit, results);
  add_step_samples(tuning, results);
  if (tuning.complete) add_answer(tuning, fit, results);
}

bool is_tied(const Results& results, double cap_mib) {
  return std::ranges::any_of(results.indifference_set, [&](double cap) { return std::abs(cap - cap_mib) < 1e-9 * cap_mib; });
}

std::string remark_on(const Results& results, double cap_mib) {
  const bool chosen = cap_mib == results.decision->cap_mib;
  const bool measured = cap_mib == results.best_measured->cap_mib;
  if (chosen) return measured ? "chosen, measured best" : "chosen";
  if (measured) return "measured best";
  return is_tied(results, cap_mib) ? "as good" : "";
}

}  // namespace firkin
