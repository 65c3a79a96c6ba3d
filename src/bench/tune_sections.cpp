#include "bench/tune_sections.h"

#include <algorithm>

#include "firkin/base/units.h"

namespace firkin {
namespace {

CurveRow curve_row(const CurvePoint& point) {
  return {.cap_mib = mib(point.predicted.cap_bytes),
          .buckets = point.predicted.buckets,
          .predicted_s = point.predicted.step_s,
          .measured_s = point.measured.step_s,
          .measured_ci_s = point.measured.step_ci,
          .error = point.predicted.step_s / point.measured.step_s - 1};
}

StrategyRow strategy_row(const Measurement& measured, const Measurement& none, const TuneResult& tuned) {
  StrategyRow row{.strategy = measured.name, .buckets = measured.buckets, .measured_s = measured.step_s, .measured_ci_s = measured.step_ci};
  row.exposed_s = none.step_s * (measured.to_none.ratio - 1);
  row.comm_s = measured.comm_s;
  if (measured.name == kChoiceName) {
    const CapPrediction& choice = tuned.race.caps[tuned.decision.standing.choice];
    row.predicted_s = choice.step_s;
  }
  for (const auto* plan : {&tuned.torch_default, &tuned.ordered}) {
    if (*plan && (*plan)->measured.name == measured.name) row.predicted_s = (*plan)->predicted_s;
  }
  for (const HookPoint& hook : tuned.hooks) {
    if (hook.measured.name == measured.name) row.predicted_s = hook.predicted.step_s;
  }
  return row;
}

std::optional<Gain> gain_of(const std::optional<PairedRatio>& ratio) {
  if (!ratio) return std::nullopt;
  return Gain{ratio->ratio, ratio->interval};
}

TuneAnswer answer_of(const TuneResult& tuned) {
  TuneAnswer answer;
  answer.best_predicted = curve_row(tuned.curve[tuned.best_predicted]);
  answer.best_measured = curve_row(tuned.curve[tuned.best_measured]);
  for (const size_t i : tuned.indifference) answer.indifference_set.push_back(mib(tuned.curve[i].predicted.cap_bytes));
  // Noise can make the paired ratio come out below 1; nothing is lost then.
  answer.regret = std::max(0.0, tuned.predicted_to_best.ratio - 1);
  answer.regret_ci = Interval{tuned.predicted_to_best.interval.low - 1, tuned.predicted_to_best.interval.high - 1};
  answer.decision = decision_section(tuned.decision, tuned.race.caps);
  for (const Measurement& measured : tuned.strategies) {
    if (measured.name == kChoiceName) answer.decision.measured_s = measured.step_s;
  }
  for (const CurvePoint& point : tuned.curve) {
    if (!answer.decision.measured_s &&
        point.predicted.lowest_cap_bytes == tuned.race.caps[tuned.decision.standing.choice].lowest_cap_bytes) {
      answer.decision.measured_s = point.measured.step_s;
    }
  }
  answer.over_default = answer.decision.over_default;
  answer.ordered_over_best_cap = gain_of(tuned.ordered_to_best_cap);
  if (tuned.ordered) answer.ordered_over_default = gain_of(tuned.ordered->to_torch_default);
  for (const HookPoint& hook : tuned.hooks) {
    answer.hooks.push_back({.hook = hook.hook,
                            .cap_mib = mib(hook.predicted.cap_bytes),
                            .predicted_s = hook.predicted.step_s,
                            .measured_s = hook.measured.step_s,
                            .ratio = hook.to_best_cap.ratio,
                            .ratio_ci = hook.to_best_cap.interval});
  }
  return answer;
}

}  // namespace

void add_tune(const TuneResult& tuned, Results& results) {
  results.complete = tuned.complete;
  results.notes = tuned.notes;
  if (!tuned.profile.tensors.names.empty()) {
    results.profile = ProfileSection{.tensors = tuned.profile.tensors,
                                     .bare_backward_s = tuned.profile.bare_backward_s,
                                     .hook_perturbation = tuned.profile.hooked_to_bare.ratio - 1,
                                     .hook_perturbation_ci = {}};
  }
  results.allreduce = tuned.allreduce;
  if (!tuned.allreduce.empty()) results.alpha_beta = tuned.alpha_beta;
  if (!tuned.calibration.runs.empty()) {
    results.calibration = CalibrationSection{.runs = {}, .fit = tuned.calibration.fit};
    for (const Measurement& run : tuned.calibration.runs) results.calibration->runs.push_back({run.name, run.buckets, run.step_s});
  }
  for (const CapPrediction& predicted : tuned.dense_curve) {
    CurveRow row;
    row.cap_mib = mib(predicted.cap_bytes);
    row.buckets = predicted.buckets;
    row.predicted_s = predicted.step_s;
    results.dense_curve.push_back(row);
  }
  if (tuned.curve.empty()) return;
  StepSamples samples;
  samples.race_step_s = tuned.race.steps.step_s;
  for (const CurvePoint& point : tuned.curve) results.curve.push_back(curve_row(point));
  if (tuned.strategies.empty()) return;  // the race is over, the rest is not measured yet
  for (const Measurement& measured : tuned.strategies) {
    results.strategies.push_back(strategy_row(measured, tuned.strategies[0], tuned));
    samples.settings.push_back(results.strategies.back().strategy);
  }
  if (tuned.strategies.back().name != kChoiceName) {
    for (const CurvePoint& point : tuned.curve) samples.settings.push_back(point.measured.name);
  }
  samples.step_s = tuned.steps.step_s;
  samples.comm_s = tuned.steps.comm_s;
  samples.raw_step_s_by_rank = tuned.steps.raw_step_s;
  results.step_samples = std::move(samples);
  if (tuned.complete) results.answer = answer_of(tuned);
}

}  // namespace firkin
