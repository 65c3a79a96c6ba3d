// The answer of `firkin predict` in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "answer.h"
#include "firkin/base/units.h"
#include "results/numbers.h"

namespace firkin {
namespace {

constexpr double kSlowRank = 0.05;  // above the median rank in every step: worth a sentence

// As it can be typed: a rounder cap may make other buckets.
std::string exact_cap(const std::optional<int64_t>& cap_bytes) {
  return fmt::format("{:.6g}", mib(cap_bytes.value_or(0)));
}

std::string buckets_text(auto count) {
  return count == 1 ? "1 bucket" : fmt::format("{} buckets", count);
}

std::string spread_text(const auto& row) {
  return fmt::format("{} to {}", display_seconds(row.low_s.value_or(row.backward_s)), display_seconds(row.high_s.value_or(row.backward_s)));
}

constexpr double kLeastGainShown = 5e-4;

std::string gain_text(double gain) {
  return gain < kLeastGainShown ? "gains nothing" : fmt::format("gains {}", display_percent(gain));
}

// What was not measured.
void add_extrapolated(const Prediction& prediction, std::vector<std::string>& lead) {
  if (!prediction.workload.extrapolated) return;
  if (const auto& extrapolation = prediction.extrapolation) {
    std::vector<std::string> forms;
    for (const FormPrediction& form : extrapolation->forms) forms.push_back(fmt::format("{} {}", form.form, display_percent(form.weight)));
    lead.push_back(fmt::format("EXTRAPOLATED: {} ranks were not measured. Fitted to {} ranks; models by weight: {}.",
                               prediction.workload.world_size, fmt::join(extrapolation->fitted_worlds, ", "), fmt::join(forms, ", ")));
  }
  const auto& stragglers = prediction.stragglers;
  if (stragglers && stragglers->beyond_samples) {
    lead.push_back(fmt::format(
        "EXTRAPOLATED: the slowest of {} ranks, from {} times: {} above the slowest measured as they are, {} with an "
        "exponential tail.",
        stragglers->ranks, stragglers->samples, display_percent(stragglers->factor - 1), display_percent(stragglers->tail_factor - 1)));
  }
}

// Intervals, and the cap to take when the inputs may be wrong.
void add_odds(const Prediction& prediction, std::vector<std::string>& lead) {
  const auto& safest = prediction.safest;
  if (!safest) return;
  const PredictedBucketing& best = prediction.best_uniform;
  lead.push_back(
      fmt::format("Redrawn within {}, backward takes {} with the best cap (95 %) and {} with the best plan; P(no cap is more than 1 % "
                  "faster) is {} for "
                  "the best cap.",
                  prediction.extrapolation ? "what the models missed" : "the errors of what was measured", spread_text(best),
                  spread_text(prediction.best_plan), display_percent(best.near_best.value_or(0))));
  lead.push_back(fmt::format("The safest uniform cap is {} MiB ({}): expected {} above the best; the best cap, {}.",
                             exact_cap(safest->cap_bytes), buckets_text(safest->buckets),
                             display_percent(safest->expected_regret.value_or(0)), display_percent(best.expected_regret.value_or(0))));
}

std::string workload_text(const PredictedWorkload& workload) {
  return fmt::format("{} tensors, {} of gradients, backward {}; {} ranks; rule {}.", workload.tensors,
                     format_bytes(workload.gradient_bytes), display_seconds(workload.backward_s), workload.world_size, workload.rule);
}

std::string allreduce_text(const AlphaBeta& fit, const std::optional<LeaveOneOut>& quality) {
  const std::string bandwidth = fit.beta_s_per_byte > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / fit.beta_s_per_byte) : "no limit";
  std::string text = fmt::format("a(x) fits {} + x / ({}), with a median error of {}.", display_seconds(fit.alpha_s), bandwidth,
                                 display_percent(fit.median_relative_error));
  if (quality) {
    text += fmt::format(" Leaving out a size of a(x), the table misses it by {}, at worst {}.",
                        display_percent(quality->median_relative_error), display_percent(quality->largest_relative_error));
  }
  return text;
}

std::string best_text(const Prediction& prediction) {
  const PredictedBucketing& uniform = prediction.best_uniform;
  const PredictedPlan& plan = prediction.best_plan;
  std::string text;
  if (uniform.lowest_cap_bytes && uniform.highest_cap_bytes && *uniform.highest_cap_bytes < prediction.workload.gradient_bytes) {
    text = fmt::format("Caps from {} to {} MiB make the same buckets. ", exact_cap(uniform.lowest_cap_bytes),
                       exact_cap(uniform.highest_cap_bytes));
  }
  if (!uniform.exhaustive.value_or(true))
    text += "Not every cap was tried, here and wherever caps are compared: there are too many, so some were skipped. ";
  return text + fmt::format("The best plan {} has {}: backward takes {}, {} of it exposed.",
                            plan.exact ? "in ready order" : "that a local search found", buckets_text(plan.buckets.size()),
                            display_seconds(plan.backward_s), display_seconds(plan.exposed_s));
}

// What hiding communication behind the next forward pass as well is worth; the plan is in a table.
std::string ordered_text(const PredictedOrdered& ordered) {
  const bool gains = ordered.gain >= kLeastGainShown;
  std::string text =
      fmt::format("Launched by need and awaited in the next forward pass (ordered), a step takes {} instead of {} with the best cap",
                  display_seconds(ordered.period_s), display_seconds(ordered.bucketed_period_s));
  text += gains ? fmt::format(", {} less", display_percent(ordered.gain)) : std::string(", which gains nothing");
  text += fmt::format("; no plan takes less than {}.", display_seconds(ordered.bound_s));
  if (ordered.low_s && ordered.high_s) {
    text += fmt::format(" Redrawn within the errors of what was measured: {} to {}.", display_seconds(*ordered.low_s),
                        display_seconds(*ordered.high_s));
  }
  return text + fmt::format(" It has {}; forward waits for {}.", buckets_text(ordered.buckets.size()), display_seconds(ordered.waited_s));
}

std::string hook_text(const PredictedHook& hook, const PredictedHook& none) {
  const double change = hook.backward_s / none.backward_s - 1;
  return fmt::format("With {} on the wire, backward takes {} with its best cap ({}). It rounds every gradient: compare the loss as well.",
                     hook.name, display_seconds(hook.backward_s), display_percent(change, true));
}

}  // namespace

std::string prediction_heading(const Prediction& prediction) {
  const PredictedBucketing& best = prediction.best_uniform;
  return fmt::format(
      "The best cap is predicted to be {} MiB ({}): backward takes {}, {} of it exposed; the best plan of unequal buckets {}.",
      exact_cap(best.cap_bytes), buckets_text(best.buckets), display_seconds(best.backward_s), display_seconds(best.exposed_s),
      gain_text(prediction.best_plan.gain));
}

std::vector<std::string> prediction_lead(const Prediction& prediction) {
  std::vector<std::string> lead;
  add_extrapolated(prediction, lead);
  add_odds(prediction, lead);
  lead.push_back(workload_text(prediction.workload));
  lead.push_back(allreduce_text(prediction.alpha_beta, prediction.workload.curve_quality));
  if (const auto& stragglers = prediction.stragglers) {
    lead.push_back(fmt::format(
        "Backward is that of the slowest of {} ranks, expected {} above the {} of {} ({} measured times).", stragglers->ranks,
        display_percent(stragglers->factor - 1, true), display_seconds(stragglers->measured_backward_s),
        stragglers->measured_ranks == 1 ? "one" : fmt::format("the slowest of {}", stragglers->measured_ranks), stragglers->samples));
    if (stragglers->slowest_rank_ratio > 1 + kSlowRank) {
      lead.push_back(
          fmt::format("One of the measured ranks is slow in every step: {} above the median rank. That is in the profile already.",
                      display_percent(stragglers->slowest_rank_ratio - 1)));
    }
  }
  lead.push_back(best_text(prediction));
  if (prediction.ordered) lead.push_back(ordered_text(*prediction.ordered));
  const auto none = std::ranges::find(prediction.hooks, "none", &PredictedHook::name);
  for (const PredictedHook& hook : prediction.hooks) {
    if (none != prediction.hooks.end() && hook.name != none->name) lead.push_back(hook_text(hook, *none));
  }
  if (prediction.analytic) {
    const EqualBuckets& even = prediction.analytic->even;
    lead.push_back(fmt::format("Closed form (equal buckets, gradients at an even rate): {:.4g} MiB, {:.3g} buckets, {} exposed.",
                               mib(even.bucket_bytes), even.count, display_seconds(even.exposed_s)));
  }
  if (!prediction.sensitivity) return lead;
  for (const Elasticity& elasticity : prediction.sensitivity->elasticities) {
    lead.push_back(elasticity.words + ".");
    if (lead.back()[0] == 'f') lead.back()[0] = 'F';
  }
  return lead;
}

std::vector<KeyFigure> prediction_figures(const Prediction& prediction) {
  const PredictedBucketing& best = prediction.best_uniform;
  const PredictedPlan& plan = prediction.best_plan;
  std::vector<KeyFigure> figures = {
      {"Best cap", exact_cap(best.cap_bytes) + " MiB", buckets_text(best.buckets)},
      {"Backward with it", display_seconds(best.backward_s), display_seconds(best.exposed_s) + " of it exposed"},
      {"Best plan", display_seconds(plan.backward_s), fmt::format("{}, {}", buckets_text(plan.buckets.size()), gain_text(plan.gain))}};
  if (const auto& ordered = prediction.ordered) {
    figures.push_back({"Step, ordered", display_seconds(ordered->period_s), gain_text(ordered->gain) + " over the best cap"});
  }
  if (!prediction.sensitivity) return figures;
  const std::vector<SensitivityPoint>& points = prediction.sensitivity->points;
  const SensitivityPoint& now = *std::ranges::find(points, 1.0, &SensitivityPoint::factor);
  figures.push_back({"Caps within 1 %", fmt::format("{} – {}", display_cap(mib(now.near_low_bytes)), display_cap(mib(now.near_high_bytes))),
                     "MiB, around the best"});
  figures.push_back({"Keeping it costs at most", display_percent(cost_of_keeping(*std::ranges::max_element(points, {}, cost_of_keeping))),
                     "when one input changes to 1/8 to 8 times"});
  return figures;
}

std::vector<PasteSetting> prediction_settings(const Prediction& prediction) {
  const PredictedPlan& plan = prediction.best_plan;
  return paste_settings(std::max<int64_t>(1, prediction.best_uniform.cap_bytes.value_or(1)), kFloatBytes,
                        plan.pytorch.reproduces_plan ? plan.pytorch.mib : std::vector<double>());
}

}  // namespace firkin
