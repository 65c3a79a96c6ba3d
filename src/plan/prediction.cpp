#include "firkin/plan/prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

// What times are predicted from.
struct PredictionModel {
  TensorProfile profile;
  CommCosts costs;
  CapOptions rule;
  SearchOptions search;
  std::optional<double> residual = {};
  std::vector<InputDraw> input_draws = {};  // none if the inputs' errors are unknown
  bool draws_growth = false;                // whether they are laws of growth, which differ by more than the model's error
  std::vector<InputDraw> all_draws = {};    // with the model's errors: possible_inputs()
  bool compute_assumed = false;             // PredictionInputs::compute_assumed
  std::optional<CapOdds> odds = {};         // over these
  UniformCap choice = {};                   // the cap to use

  // What intervals are made from.
  const std::vector<InputDraw>& interval_draws() const { return residual ? input_draws : all_draws; }

  // The draws over which plans for `ordered` are weighed.
  std::vector<InputDraw> ordered_draws() const {
    const InputDraw nominal{.costs = costs, .simulation = search.simulation};
    return draws_growth ? input_draws : with_model_errors(input_draws, nominal, residual);
  }
};

// drawn_s: times over interval_draws(), of which the interval has the middle 95 %. A calibrated model adds its own
// error to them.
void set_interval(const PredictionModel& model, double predicted_s, std::vector<double> drawn_s, auto& row) {
  constexpr double kOutside = 0.025;  // on either side
  if (!model.residual) {
    row.low_s = std::min(predicted_s, quantile(drawn_s, kOutside));
    row.high_s = std::max(predicted_s, quantile(drawn_s, 1 - kOutside));
    return;
  }
  if (drawn_s.empty()) drawn_s = {predicted_s};
  const double of_model = std::log(model_range(model.residual));
  const double below = std::max(0.0, std::log(predicted_s / quantile(drawn_s, kOutside)));
  const double above = std::max(0.0, std::log(quantile(drawn_s, 1 - kOutside) / predicted_s));
  row.low_s = predicted_s * std::exp(-std::hypot(below, of_model));
  row.high_s = predicted_s * std::exp(std::hypot(above, of_model));
}

// The prediction for any plan, whether or not a cap makes it.
PredictedCap predicted(const PredictionModel& model, const BucketPlan& plan) {
  const Timeline timeline = simulate(model.profile, plan, model.costs, model.search.simulation);
  PredictedCap row = {.buckets = std::ssize(plan.buckets), .time_s = timeline.end_s, .exposed_s = timeline.exposed_s};
  set_interval(model, row.time_s, drawn_times(model.profile, plan, model.interval_draws()), row);
  return row;
}

PredictedCap predicted_cap(const PredictionModel& model, const BucketPlan& plan) {
  PredictedCap row = predicted(model, plan);
  const PlanOdds odds = model.odds->of(plan);
  row.near_best = odds.near_best;
  row.expected_regret = odds.expected_regret;
  return row;
}

// The cap to use.
PredictedCap least_regret(const PredictionModel& model) {
  const auto& [caps, plan] = model.choice;
  PredictedCap row = predicted_cap(model, plan);
  row.cap_bytes = roundest_cap(caps);
  row.lowest_cap_bytes = caps.lowest_cap_bytes;
  row.highest_cap_bytes = caps.highest_cap_bytes;
  row.exhaustive = model.odds->exhaustive();
  return row;
}

std::vector<PredictedCap> predicted_curve(const PredictionModel& model, const std::vector<int64_t>& caps) {
  std::vector<PredictedCap> rows;
  for (const int64_t cap : caps) {
    rows.push_back(predicted_cap(model, assign_buckets(model.profile.bytes, with_cap(model.rule, cap))));
    rows.back().cap_bytes = cap;
  }
  return rows;
}

PredictedGain gain_over_default(const PredictionModel& model) {
  constexpr double kOutside = 0.05;  // on either side
  const BucketPlan default_plan = assign_buckets(model.profile.bytes, kTorchDefaultCaps);
  const std::vector<double> by_default = model.odds->times(default_plan);
  std::vector<double> gains = model.odds->times(model.choice.plan);
  for (size_t draw = 0; draw < gains.size(); ++draw) gains[draw] = by_default[draw] > 0 ? 1 - gains[draw] / by_default[draw] : 0;
  // The inputs as they are stated are possible as well, whatever contention was drawn beside them; and, if computing was
  // assumed, with it as slow as it may be.
  const auto stated = [&](double compute_factor) {
    const TensorProfile profile = slowed(model.profile, compute_factor);
    const double stated_s = simulate(profile, model.choice.plan, model.costs, model.search.simulation).end_s;
    const double default_s = simulate(profile, default_plan, model.costs, model.search.simulation).end_s;
    return default_s > 0 ? 1 - stated_s / default_s : 0;
  };
  const double as_stated = stated(1), slowest = model.compute_assumed ? stated(std::exp(kNormal90 * kOfAssumedCompute)) : as_stated;
  return {.expected = mean(gains),
          .low = std::min({as_stated, slowest, quantile(gains, kOutside)}),
          .high = std::max({as_stated, slowest, quantile(gains, 1 - kOutside)})};
}

std::vector<PredictedBaseline> predicted_baselines(const PredictionModel& model, double best_s) {
  std::vector<PredictedBaseline> rows;
  for (const Baseline& baseline : baselines(model.profile, model.costs)) {
    PredictedCap& plan = rows.emplace_back(baseline.name, baseline.description, predicted(model, baseline.plan)).plan;
    plan.regret = std::max(0.0, plan.time_s / best_s - 1);
  }
  return rows;
}

BestPlan best_plan(const PredictionModel& model, double uniform_s) {
  BestPlan best = find_best_plan(model.profile, model.costs, model.search);
  if (best.timeline.end_s > uniform_s) {  // under contention, or by less than the search's tolerance
    best.plan = model.choice.plan;
    best.timeline = simulate(model.profile, best.plan, model.costs, model.search.simulation);
  }
  return best;
}

PredictedPlan predicted_plan(const PredictionModel& model, const BestPlan& best, double uniform_s) {
  const double best_s = best.timeline.end_s;
  if (!(best_s > 0)) throw InputError("the tensors take no time to compute and to send; expected some ready_s or bytes above 0");
  PredictedPlan plan;
  for (const BucketSpan& span : best.timeline.buckets) {
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto first = model.profile.names.begin() + bucket.first;
    plan.buckets.push_back({span, {first, first + bucket.count}});
  }
  plan.backward_s = best_s;
  plan.exposed_s = best.timeline.exposed_s;
  plan.gain = std::max(0.0, 1 - best_s / uniform_s);
  plan.exact = best.exact;
  plan.pytorch = pytorch_caps(best.plan, model.profile.bytes);
  set_interval(model, best_s, drawn_times(model.profile, best.plan, model.interval_draws()), plan);
  return plan;
}

PredictedOrdered predicted_ordered(const PredictionModel& model, const BestPlan& best, double bucketed_backward_s) {
  const bool contended = model.search.simulation.compute_slowdown != 1;  // then another plan may be better to start from
  PredictedOrdered ordered = predict_ordered(model.profile, model.costs, bucketed_backward_s, model.search, model.ordered_draws(),
                                             contended ? std::nullopt : std::optional(best.plan));
  set_interval(model, ordered.period_s, drawn_periods(model.profile, ordered.plan, model.interval_draws()), ordered);
  return ordered;
}

PredictedSharded predicted_sharded(const PredictionModel& model, const PredictionInputs& inputs, const PredictedCap& best,
                                   double ordered_period_s) {
  ShardedSearch search = {.ranks = inputs.world_size, .rule = model.rule, .search = model.search};
  search.search.simulation = with_agreement(model.search.simulation, model.costs);
  PredictedSharded sharded = predict_sharded(model.profile, halves_of(model.costs), search, best.time_s);
  if (ordered_period_s > 0) sharded.gain_over_ordered = 1 - sharded.period_s / ordered_period_s;
  sharded.halves = true;
  return sharded;
}

}  // namespace

PredictedAnswer answer_of(const Prediction& prediction) {
  if (!prediction.over_default) return PredictedAnswer::kLikely;
  const PredictedGain& gain = *prediction.over_default;
  if (gain.expected < kWorthMeasuring) return PredictedAnswer::kNothingToGain;
  return gain.low > 0 ? PredictedAnswer::kLikely : PredictedAnswer::kNotToldApart;
}

NearBest near_best_of(double share) {
  constexpr double kUnlikely = 0.2, kLikely = 0.7;
  if (share < kUnlikely) return NearBest::kUnlikely;
  return share < kLikely ? NearBest::kPossible : NearBest::kLikely;
}

Prediction predict(PredictionInputs inputs) {
  check_options(inputs.search.simulation);  // before anything is made of them
  const int64_t world = inputs.world_size;
  const bool measured = std::ranges::binary_search(world_sizes(inputs.table), world);
  std::optional<GrownCosts> grown;
  if (inputs.sharded && !inputs.profile.knows_forward()) {
    throw InputError(fmt::format("sharded: the profile has no column {}; expected one", kTensorNeeded));
  }
  if (!measured) grown = grown_costs(inputs.table, world);
  if (!(inputs.latency_factor > 0)) throw InputError(fmt::format("the latency factor is {}; expected more than 0", inputs.latency_factor));
  const CommCosts alone = measured ? comm_costs(inputs.table, world) : grown->likely;
  Prediction result;
  result.doubts = doubts_about(inputs.table);
  std::ranges::move(doubts_about(inputs.profile), std::back_inserter(result.doubts));
  PredictionModel model{std::move(inputs.profile), scaled(alone, inputs.latency_factor), inputs.rule, inputs.search, inputs.residual};
  const auto with_latency = [&](std::vector<CommCosts> drawn_costs) {
    for (CommCosts& drawn : drawn_costs) drawn = scaled(drawn, inputs.latency_factor);
    return drawn_costs;
  };
  model.input_draws = draws_of(with_latency(grown ? grown->laws : redraw_costs(inputs.table, world)), model.search.simulation);
  model.draws_growth = grown.has_value();
  model.compute_assumed = inputs.compute_assumed;
  // The times of a table that states no errors are taken to err by this part of the table's distance from its own line.
  constexpr double kPartOfMisfit = 0.15;
  const double unstated = kPartOfMisfit * fit_alpha_beta(model.costs.isolated.points()).median_relative_error;
  std::vector<CommCosts> drawn_costs = with_latency(grown ? grown->laws : redraw_costs(inputs.table, world, unstated));
  if (drawn_costs.empty()) drawn_costs = {model.costs};
  model.all_draws = possible_inputs(drawn_costs, model.search.simulation, model.residual.has_value(), inputs.compute_assumed);
  model.odds.emplace(model.profile, model.all_draws, model.rule, model.search);
  model.choice = model.odds->least_regret(grown ? kSameShareOfGrown : 0);
  const auto has_gap = [&](const AllReduceRow& row) { return row.gap_s && (!measured || row.world_size == world); };
  result.workload = {.world_size = world,
                     .extrapolated_from = grown ? std::optional(grown->from_world) : std::nullopt,
                     .tensors = std::ssize(model.profile.names),
                     .gradient_bytes = model.profile.total_bytes(),
                     .backward_s = model.profile.backward_s,
                     .rule = name_of(model.rule.rule),
                     .first_cap_bytes = model.rule.first_cap_bytes,
                     .gap_measured = std::ranges::any_of(inputs.table, has_gap),
                     .compute_assumed = inputs.compute_assumed,
                     .simulation = model.search.simulation,
                     .latency_factor = inputs.latency_factor != 1 ? std::optional(inputs.latency_factor) : std::nullopt};
  result.alpha_beta = fit_alpha_beta(model.costs.isolated.points());
  result.best_uniform = least_regret(model);
  std::vector<int64_t> caps = inputs.caps;
  if (caps.empty()) {  // powers of two until one holds everything
    caps = {kMiB / 4};
    while (caps.back() < result.workload.gradient_bytes) caps.push_back(2 * caps.back());
  }
  result.curve = predicted_curve(model, caps);
  const BestPlan best = best_plan(model, result.best_uniform.time_s);
  result.best_plan = predicted_plan(model, best, result.best_uniform.time_s);
  result.baselines = predicted_baselines(model, result.best_plan.backward_s);
  result.over_default = gain_over_default(model);
  if (model.profile.knows_forward()) result.ordered = predicted_ordered(model, best, result.best_uniform.time_s);
  if (inputs.sharded) result.sharded = predicted_sharded(model, inputs, result.best_uniform, result.ordered->period_s);
  if (inputs.sensitivity) result.sensitivity = sensitivity_table(model.profile, model.costs, model.rule, model.search);
  return result;
}

}  // namespace firkin
