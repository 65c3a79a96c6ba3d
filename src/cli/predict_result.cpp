#include "predict_result.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin::cli {
namespace {

// One of the futures that an extrapolated prediction stands for.
struct Scenario {
  TensorProfile profile;
  CommCosts costs;
};

int64_t world_of(const PredictInputs& inputs) {
  const std::vector<int64_t> worlds = world_sizes(inputs.table);
  if (inputs.world_size != 0) return inputs.world_size;
  if (worlds.size() == 1) return worlds[0];
  throw InputError(fmt::format("{}: has several world sizes; expected --world with one of {}, or another to extrapolate to",
                               inputs.table_file, fmt::join(worlds, ", ")));
}

// The caps asked for, or powers of two from 1/4 MiB until one holds everything.
std::vector<int64_t> caps_of(const PredictInputs& inputs, int64_t total_bytes) {
  if (!inputs.caps.empty()) return inputs.caps;
  std::vector<int64_t> caps = {kMiB / 4};
  while (caps.back() < total_bytes) caps.push_back(2 * caps.back());
  return caps;
}

TensorProfile slower(const TensorProfile& profile, const CommCosts& costs, double factor) {
  return scale_inputs({profile, costs, {}}, Influence::kBackward, factor).profile;
}

std::optional<AnalyticPrediction> analytic_of(const PredictResult& result, double total_bytes) {
  const AlphaBeta& fit = result.alpha_beta;
  if (fit.alpha_s <= 0 || fit.beta_s_per_byte <= 0 || result.profile.backward_s <= 0 || total_bytes <= 0) return std::nullopt;
  AnalyticPrediction analytic;
  analytic.workload = {.total_bytes = total_bytes,
                       .backward_s = result.profile.backward_s,
                       .overhead_s = fit.alpha_s,
                       .bandwidth_bytes_s = 1 / fit.beta_s_per_byte};
  analytic.balanced = best_balanced_buckets(analytic.workload);
  analytic.even = best_even_buckets(analytic.workload);
  if (total_bytes * fit.beta_s_per_byte >= result.profile.backward_s) analytic.growing = best_growing_buckets(analytic.workload);
  return analytic;
}

Extrapolation extrapolate(const ScalingModel& model, const PredictResult& result) {
  Extrapolation extrapolation{.fitted_worlds = model.fitted_worlds(), .forms = {}, .minimax = {}};
  std::vector<CommCosts> all_costs;
  for (const FormFit& fit : model.fits()) {
    all_costs.push_back(model.costs(fit.form, result.world_size));
    extrapolation.forms.push_back({.form = fit.form,
                                   .median_relative_error = fit.median_relative_error,
                                   .best = find_best_uniform_cap(result.profile, all_costs.back(), result.rule, result.search)});
  }
  extrapolation.minimax = find_minimax_regret_cap(result.profile, all_costs, result.rule, result.search);
  return extrapolation;
}

// Everything that follows from the profile and the two curves.
void predict_with(const CommCosts& costs, const std::vector<int64_t>& caps, PredictResult& result) {
  const TensorProfile& profile = result.profile;
  result.alpha_beta = fit_alpha_beta(costs.isolated.points());
  result.curve_quality = leave_one_out_of_curve(costs.isolated.points());
  result.alpha_beta_quality = leave_one_out_of_alpha_beta(costs.isolated.points());
  result.curve = sweep_caps(profile, costs, result.rule, caps, result.search.simulation);
  result.best_uniform = find_best_uniform_cap(profile, costs, result.rule, result.search);
  result.best_plan = find_optimal_plan(profile, costs, result.search);
  if (result.best_plan.timeline.end_s > result.best_uniform.timeline.end_s && !result.best_plan.exact) {
    result.best_plan = {result.best_uniform.plan, result.best_uniform.timeline, false};
  }
  result.pytorch = pytorch_caps(result.best_plan.plan, profile.bytes);
  const double best_s = result.best_plan.timeline.end_s;
  if (!(best_s > 0)) throw InputError("the tensors take no time to compute and to send; expected some ready_s or bytes above 0");
  result.baselines = simulate_baselines(profile, costs, result.search.simulation, best_s);
}

// Which times the scenarios give to each plan of the result. Its own times are the middle ones.
ExtrapolatedRanges ranges_over(const std::vector<Scenario>& scenarios, const PredictResult& result) {
  const auto range = [&](const BucketPlan& plan, double middle_s) {
    TimeRange times = {middle_s, middle_s, middle_s};
    for (const Scenario& scenario : scenarios) {
      const double end_s = simulate(scenario.profile, plan, scenario.costs, result.search.simulation).end_s;
      times.low_s = std::min(times.low_s, end_s);
      times.high_s = std::max(times.high_s, end_s);
    }
    return times;
  };
  ExtrapolatedRanges ranges;
  CapOptions options = result.rule;
  for (const SweepPoint& point : result.curve) {
    options.cap_bytes = point.cap_bytes;
    ranges.curve.push_back(range(assign_buckets(result.profile.bytes, options), point.backward_s));
  }
  ranges.best_uniform = range(result.best_uniform.plan, result.best_uniform.timeline.end_s);
  ranges.best_plan = range(result.best_plan.plan, result.best_plan.timeline.end_s);
  for (const Baseline& baseline : result.baselines) ranges.baselines.push_back(range(baseline.plan, baseline.timeline.end_s));
  return ranges;
}

// Every form of a(x), each with every rank as slow as the measured ones can tell and, when more ranks are drawn than were measured, with a
// tail beyond them. Nothing when neither is extrapolated.
std::vector<Scenario> scenarios_of(const std::optional<ScalingModel>& scaling, const CommCosts& costs, const PredictResult& result) {
  const bool tail = result.stragglers && result.stragglers->slowest.beyond_samples;
  std::vector<Scenario> scenarios;
  if (!scaling && !tail) return scenarios;
  std::vector<CommCosts> all_costs = {costs};
  if (scaling) {
    for (const FormFit& fit : scaling->fits()) all_costs.push_back(scaling->costs(fit.form, result.world_size));
  }
  for (const CommCosts& form : all_costs) {
    scenarios.push_back({result.profile, form});
    if (!tail) continue;
    const Straggler& slowest = result.stragglers->slowest;
    scenarios.push_back({slower(result.profile, costs, slowest.tail_factor / slowest.factor), form});
  }
  return scenarios;
}

}  // namespace

PredictResult predict(PredictInputs inputs) {
  PredictResult result;
  result.rule = inputs.rule;
  result.rule_name = inputs.rule_name;
  result.search = inputs.search;
  result.profile = std::move(inputs.profile);
  const int64_t total = std::accumulate(result.profile.bytes.begin(), result.profile.bytes.end(), int64_t{0});

  result.world_size = world_of(inputs);
  const bool measured = std::ranges::binary_search(world_sizes(inputs.table), result.world_size);
  result.gap_measured = std::ranges::any_of(
      inputs.table, [&](const AllReduceRow& row) { return row.gap_s && (!measured || row.world_size == result.world_size); });
  std::optional<ScalingModel> scaling;
  if (!measured) scaling.emplace(inputs.table);
  const CommCosts costs = measured ? comm_costs(inputs.table, result.world_size) : scaling->median_costs(result.world_size);
  if (!inputs.rank_times.empty()) {
    const Straggler slowest = expected_straggler(inputs.rank_times, result.world_size);
    result.stragglers = {inputs.rank_times.size(), slowest, result.profile.backward_s};
    result.profile = slower(result.profile, costs, slowest.factor);
  }
  predict_with(costs, caps_of(inputs, total), result);
  result.analytic = analytic_of(result, static_cast<double>(total));
  if (scaling) result.extrapolation = extrapolate(*scaling, result);
  const std::vector<Scenario> scenarios = scenarios_of(scaling, costs, result);
  if (!scenarios.empty()) result.ranges = ranges_over(scenarios, result);
  if (inputs.sensitivity) {
    result.sensitivity = {sensitivity_table(result.profile, costs, result.rule, result.search),
                          sensitivity_map(result.profile, costs, result.rule, result.search),
                          elasticities(result.profile, costs, result.rule, result.search)};
  }
  return result;
}

}  // namespace firkin::cli
