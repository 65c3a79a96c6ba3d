#include "firkin/plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/baselines.h"
#include "firkin/plan/scaling.h"
#include "firkin/plan/stragglers.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

// What times are predicted from.
struct PredictionModel {
  TensorProfile profile;
  CommCosts costs;
  CapOptions rule;
  SearchOptions search;
  double latency_factor = 1;
  std::vector<InputDraw> draws = {};  // none where nothing is known of the inputs' errors
  std::optional<CapOdds> odds = {};   // over them
};

// The caps asked for, or powers of two from 1/4 MiB until one holds everything.
std::vector<int64_t> caps_of(const PredictionInputs& inputs, int64_t total_bytes) {
  if (!inputs.caps.empty()) return inputs.caps;
  std::vector<int64_t> caps = {kMiB / 4};
  while (caps.back() < total_bytes) caps.push_back(2 * caps.back());
  return caps;
}

// All of its computation takes longer by this factor.
TensorProfile slower(const TensorProfile& profile, const CommCosts& costs, double factor) {
  TensorProfile result = scale_inputs({profile, costs, {}}, Influence::kBackward, factor).profile;
  for (double& needed_s : result.needed_s) needed_s *= factor;
  for (double& update_s : result.update_s) update_s *= factor;
  result.forward_s *= factor;
  return result;
}

// A standard error of the slowest measured rank's time, as a fraction, from its steps.
double compute_error(const std::vector<std::vector<double>>& rank_times) {
  constexpr double kOfMedian = 1.2533;  // sqrt(pi / 2), over that of a mean
  std::vector<double> slowest = rank_times[0];
  for (const std::vector<double>& times : rank_times) {
    for (size_t step = 0; step < slowest.size(); ++step) slowest[step] = std::max(slowest[step], times[step]);
  }
  return kOfMedian * stdev(slowest) / std::sqrt(static_cast<double>(slowest.size())) / median(slowest);
}

// Draws of what the inputs may be. With more ranks than measured times, every second draw has stragglers with an exponential tail. None
// where the all-reduces have no errors and nothing is extrapolated.
std::vector<InputDraw> draws_of(const PredictionInputs& inputs, const std::optional<ScalingModel>& scaling, const PredictionModel& model,
                                const std::optional<StragglerPrediction>& stragglers) {
  std::vector<CommCosts> costs = scaling ? scaling->redraw(inputs.world_size, kDraws) : redraw_costs(inputs.table, inputs.world_size);
  for (CommCosts& drawn : costs) drawn = scaled(drawn, inputs.latency_factor);
  const bool tail = stragglers && stragglers->beyond_samples;
  if (costs.empty() && tail) costs.assign(kDraws, model.costs);
  const double error = stragglers ? compute_error(inputs.rank_times) : 0;
  std::vector<InputDraw> draws = redraw(std::move(costs), inputs.search.simulation, error);
  for (size_t draw = 0; tail && draw < draws.size(); draw += 2) draws[draw].compute_factor *= stragglers->tail_factor / stragglers->factor;
  return draws;
}

void set_interval(const PlanOdds& odds, auto& row) {
  row.low_s = odds.low_s;
  row.high_s = odds.high_s;
}

void set_odds(const PlanOdds& odds, PredictedBucketing& row) {
  set_interval(odds, row);
  row.near_best = odds.near_best;
  row.expected_regret = odds.expected_regret;
}

PredictedBucketing bucketing(const BucketPlan& plan, const Timeline& timeline) {
  PredictedBucketing row;
  row.buckets = static_cast<int64_t>(plan.buckets.size());
  row.backward_s = timeline.end_s;
  row.exposed_s = timeline.exposed_s;
  return row;
}

PredictedBucketing uniform(const UniformCap& best) {
  PredictedBucketing row = bucketing(best.plan, best.timeline);
  row.cap_bytes = best.cap_bytes;
  row.lowest_cap_bytes = best.lowest_cap_bytes;
  row.highest_cap_bytes = best.highest_cap_bytes;
  row.partitions_tried = best.partitions_tried;
  row.exhaustive = best.exhaustive;
  return row;
}

std::vector<PredictedBucketing> predicted_curve(const PredictionModel& model, const std::vector<int64_t>& caps) {
  std::vector<PredictedBucketing> rows;
  CapOptions options = model.rule;
  for (const int64_t cap : caps) {
    options.cap_bytes = cap;
    const BucketPlan plan = assign_buckets(model.profile.bytes, options);
    rows.push_back(bucketing(plan, simulate(model.profile, plan, model.costs, model.search.simulation)));
    rows.back().cap_bytes = cap;
    if (model.odds) set_odds(model.odds->of(plan), rows.back());
  }
  return rows;
}

std::vector<PredictedBucketing> predicted_baselines(const PredictionModel& model, double best_s) {
  std::vector<PredictedBucketing> rows;
  for (const Baseline& baseline : simulate_baselines(model.profile, model.costs, model.search.simulation, best_s)) {
    rows.push_back(bucketing(baseline.plan, baseline.timeline));
    rows.back().name = baseline.name;
    rows.back().description = baseline.description;
    rows.back().regret = std::max(0.0, baseline.regret);
    if (model.odds) set_interval(model.odds->of(baseline.plan), rows.back());
  }
  return rows;
}

PredictedPlan predicted_plan(const PredictionModel& model, const UniformCap& uniform_cap) {
  PlannedBuckets best = find_optimal_plan(model.profile, model.costs, model.search);
  if (best.timeline.end_s > uniform_cap.timeline.end_s && !best.exact) best = {uniform_cap.plan, uniform_cap.timeline, false};
  const double best_s = best.timeline.end_s;
  if (!(best_s > 0)) throw InputError("the tensors take no time to compute and to send; expected some ready_s or bytes above 0");
  PredictedPlan plan;
  for (const BucketSpan& span : best.timeline.buckets) {
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto first = model.profile.names.begin() + bucket.first;
    plan.buckets.push_back({span.bytes, {first, first + bucket.count}, span.ready_s, span.start_s, span.end_s});
  }
  plan.backward_s = best_s;
  plan.exposed_s = best.timeline.exposed_s;
  plan.gain = std::max(0.0, 1 - best_s / uniform_cap.timeline.end_s);
  plan.exact = best.exact;
  plan.pytorch = pytorch_caps(best.plan, model.profile.bytes);
  if (model.odds) set_interval(model.odds->of(best.plan), plan);
  return plan;
}

PredictedOrdered predicted_ordered(const PredictionModel& model, double bucketed_backward_s) {
  PredictedOrdered ordered = predict_ordered(model.profile, model.costs, bucketed_backward_s, model.search);
  if (model.draws.empty()) return ordered;
  std::vector<double> periods;
  for (const InputDraw& draw : model.draws) {
    const TensorProfile profile = slower(model.profile, draw.costs, draw.compute_factor);
    periods.push_back(simulate_pipeline(profile, ordered.plan, draw.costs, pipeline_options(draw.costs, draw.simulation)).period_s);
  }
  constexpr double kOutside = 0.025;
  ordered.low_s = quantile(periods, kOutside);
  ordered.high_s = quantile(periods, 1 - kOutside);
  return ordered;
}

PredictedHook predicted_hook(const PredictionModel& model, const Compression& compression) {
  const CommCosts costs = compressed(model.costs, compression);
  const UniformCap best = find_best_uniform_cap(model.profile, costs, model.rule, model.search);
  PredictedHook hook{.name = compression.name,
                     .cap_bytes = best.cap_bytes,
                     .buckets = static_cast<int64_t>(best.plan.buckets.size()),
                     .backward_s = best.timeline.end_s,
                     .exposed_s = best.timeline.exposed_s};
  if (!model.profile.knows_forward()) return hook;
  const PredictedOrdered ordered = predict_ordered(model.profile, costs, best.timeline.end_s, model.search);
  hook.bucketed_period_s = ordered.bucketed_period_s;
  hook.ordered_period_s = ordered.period_s;
  return hook;
}

std::optional<AnalyticPrediction> analytic_of(const AlphaBeta& fit, const PredictedWorkload& workload) {
  const auto total_bytes = static_cast<double>(workload.gradient_bytes);
  if (fit.alpha_s <= 0 || fit.beta_s_per_byte <= 0 || workload.backward_s <= 0 || total_bytes <= 0) return std::nullopt;
  AnalyticPrediction analytic;
  analytic.workload = {.total_bytes = total_bytes,
                       .backward_s = workload.backward_s,
                       .overhead_s = fit.alpha_s,
                       .bandwidth_bytes_s = 1 / fit.beta_s_per_byte};
  analytic.balanced = best_balanced_buckets(analytic.workload);
  analytic.even = best_even_buckets(analytic.workload);
  if (total_bytes * fit.beta_s_per_byte >= workload.backward_s) analytic.growing = best_growing_buckets(analytic.workload);
  return analytic;
}

PredictedBucketing safest_cap(const PredictionModel& model, const LeastRegretCap& safest) {
  PredictedBucketing row = bucketing(safest.plan, simulate(model.profile, safest.plan, model.costs, model.search.simulation));
  row.cap_bytes = safest.cap_bytes;
  row.lowest_cap_bytes = safest.lowest_cap_bytes;
  row.highest_cap_bytes = safest.highest_cap_bytes;
  row.exhaustive = safest.exhaustive;
  set_odds(safest.odds, row);
  return row;
}

Extrapolation extrapolate(const ScalingModel& scaling, const PredictionModel& model, int64_t world, const BucketPlan& safest) {
  Extrapolation extrapolation{.fitted_worlds = scaling.fitted_worlds(), .forms = {}};
  for (const FormFit& fit : scaling.fits()) {
    const CommCosts costs = scaled(scaling.costs(fit.form, world), model.latency_factor);
    extrapolation.forms.push_back({name_of(fit.form), fit.left_out_error, fit.weight,
                                   uniform(find_best_uniform_cap(model.profile, costs, model.rule, model.search)),
                                   simulate(model.profile, safest, costs, model.search.simulation).end_s});
  }
  return extrapolation;
}

PredictedWorkload workload_of(const PredictionModel& model, int64_t world) {
  PredictedWorkload workload;
  workload.world_size = world;
  workload.tensors = static_cast<int64_t>(model.profile.names.size());
  workload.gradient_bytes = model.profile.total_bytes();
  workload.backward_s = model.profile.backward_s;
  workload.rule = name_of(model.rule.rule);
  workload.first_cap_bytes = model.rule.first_cap_bytes;
  workload.simulation = model.search.simulation;
  workload.curve_quality = leave_one_out_of_curve(model.costs.isolated.points());
  workload.alpha_beta_quality = leave_one_out_of_alpha_beta(model.costs.isolated.points());
  return workload;
}

}  // namespace

Prediction predict(PredictionInputs inputs) {
  const int64_t world = inputs.world_size;
  const bool measured = std::ranges::binary_search(world_sizes(inputs.table), world);
  std::optional<ScalingModel> scaling;
  if (!measured) scaling.emplace(inputs.table, worlds_alike(world, inputs.ranks_per_node));
  if (!(inputs.latency_factor > 0)) throw InputError(fmt::format("the latency factor is {}; expected more than 0", inputs.latency_factor));
  const CommCosts alone = measured ? comm_costs(inputs.table, world) : scaling->costs(world);
  PredictionModel model{std::move(inputs.profile), scaled(alone, inputs.latency_factor), inputs.rule, inputs.search, inputs.latency_factor};
  Prediction result;
  result.workload.world_size = world;
  if (!inputs.rank_times.empty()) {
    const Straggler slowest = expected_straggler(inputs.rank_times, world);
    const auto measured_ranks = static_cast<int64_t>(inputs.rank_times.size());
    result.stragglers = {.samples = measured_ranks * static_cast<int64_t>(inputs.rank_times[0].size()),
                         .measured_ranks = measured_ranks,
                         .slowest_rank_ratio = slowest.slowest_rank_ratio,
                         .ranks = world,
                         .factor = slowest.factor,
                         .tail_factor = slowest.tail_factor,
                         .beyond_samples = slowest.beyond_samples,
                         .measured_backward_s = model.profile.backward_s};
    model.profile = slower(model.profile, model.costs, slowest.factor);
  }
  model.draws = draws_of(inputs, scaling, model, result.stragglers);
  if (!model.draws.empty()) model.odds.emplace(model.profile, model.draws, model.rule, model.search);
  result.workload = workload_of(model, world);
  if (inputs.latency_factor != 1) result.workload.latency_factor = inputs.latency_factor;
  result.workload.extrapolated = scaling || (result.stragglers && result.stragglers->beyond_samples);
  result.workload.gap_measured =
      std::ranges::any_of(inputs.table, [&](const AllReduceRow& row) { return row.gap_s && (!measured || row.world_size == world); });
  result.alpha_beta = fit_alpha_beta(model.costs.isolated.points());
  const UniformCap best = find_best_uniform_cap(model.profile, model.costs, model.rule, model.search);
  result.best_uniform = uniform(best);
  if (model.odds) set_odds(model.odds->of(best.plan), result.best_uniform);
  result.curve = predicted_curve(model, caps_of(inputs, result.workload.gradient_bytes));
  result.best_plan = predicted_plan(model, best);
  result.baselines = predicted_baselines(model, result.best_plan.backward_s);
  if (model.profile.knows_forward()) result.ordered = predicted_ordered(model, best.timeline.end_s);
  for (const Compression& hook : inputs.hooks) result.hooks.push_back(predicted_hook(model, hook));
  result.analytic = analytic_of(result.alpha_beta, result.workload);
  if (model.odds) {
    const LeastRegretCap safest = model.odds->least_regret();
    result.safest = safest_cap(model, safest);
    if (scaling) result.extrapolation = extrapolate(*scaling, model, world, safest.plan);
  }
  if (inputs.sensitivity) {
    result.sensitivity = {sensitivity_table(model.profile, model.costs, model.rule, model.search),
                          sensitivity_map(model.profile, model.costs, model.rule, model.search),
                          elasticities(model.profile, model.costs, model.rule, model.search)};
  }
  return result;
}

}  // namespace firkin
