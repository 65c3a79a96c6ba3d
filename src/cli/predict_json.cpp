// The result of `firkin predict` as JSON.
#include "predict_numbers.h"
#include "predict_output.h"

namespace firkin::cli {
namespace {

void add_range(nlohmann::json& json, const TimeRange& range) {
  json["low_s"] = range.low_s;
  json["high_s"] = range.high_s;
}

nlohmann::json curve_json(const PredictResult& result) {
  nlohmann::json curve = nlohmann::json::array();
  for (size_t i = 0; i < result.curve.size(); ++i) {
    const SweepPoint& point = result.curve[i];
    nlohmann::json row = {
        {"cap_mib", mib(point.cap_bytes)}, {"buckets", point.buckets}, {"backward_s", point.backward_s}, {"exposed_s", point.exposed_s}};
    if (result.ranges) add_range(row, result.ranges->curve[i]);
    curve.push_back(std::move(row));
  }
  return curve;
}

nlohmann::json uniform_json(const UniformCap& best) {
  return {{"cap_mib", mib(best.cap_bytes)},
          {"same_buckets_from_mib", mib(best.lowest_cap_bytes)},
          {"same_buckets_to_mib", mib(best.highest_cap_bytes)},
          {"buckets", best.plan.buckets.size()},
          {"backward_s", best.timeline.end_s},
          {"exposed_s", best.timeline.exposed_s},
          {"partitions_tried", best.partitions_tried},
          {"exhaustive", best.exhaustive}};
}

nlohmann::json best_uniform_json(const PredictResult& result) {
  nlohmann::json json = uniform_json(result.best_uniform);
  if (result.ranges) add_range(json, result.ranges->best_uniform);
  return json;
}

nlohmann::json plan_json(const PredictResult& result) {
  const PlannedBuckets& best = result.best_plan;
  nlohmann::json buckets = nlohmann::json::array();
  for (const BucketSpan& span : best.timeline.buckets) {
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto first = result.profile.names.begin() + bucket.first;
    buckets.push_back({{"bytes", span.bytes},
                       {"tensors", std::vector<std::string>(first, first + bucket.count)},
                       {"ready_s", span.ready_s},
                       {"start_s", span.start_s},
                       {"end_s", span.end_s}});
  }
  nlohmann::json json = {{"buckets", buckets},
                         {"backward_s", best.timeline.end_s},
                         {"exposed_s", best.timeline.exposed_s},
                         {"gain", plan_gain(result)},
                         {"exact", best.exact},
                         {"bucket_cap_mb_list", result.pytorch.mib},
                         {"pytorch_reproduces_plan", result.pytorch.reproduces_plan}};
  if (result.ranges) add_range(json, result.ranges->best_plan);
  return json;
}

nlohmann::json baselines_json(const PredictResult& result) {
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < result.baselines.size(); ++i) {
    const Baseline& baseline = result.baselines[i];
    rows.push_back({{"name", baseline.name},
                    {"description", baseline.description},
                    {"buckets", baseline.plan.buckets.size()},
                    {"backward_s", baseline.timeline.end_s},
                    {"exposed_s", baseline.timeline.exposed_s},
                    {"regret", regret_of(baseline)}});
    if (result.ranges) add_range(rows.back(), result.ranges->baselines[i]);
  }
  return rows;
}

nlohmann::json analytic_json(const std::optional<AnalyticPrediction>& analytic) {
  if (!analytic) return nullptr;
  const auto equal = [](const EqualBuckets& buckets) -> nlohmann::json {
    return {{"buckets", buckets.count}, {"cap_mib", mib(buckets.bucket_bytes)}, {"exposed_s", buckets.exposed_s}};
  };
  nlohmann::json json = {{"overhead_s", analytic->workload.overhead_s},
                         {"bandwidth_bytes_s", analytic->workload.bandwidth_bytes_s},
                         {"balanced", equal(analytic->balanced)},
                         {"even", equal(analytic->even)},
                         {"growing", nullptr}};
  if (analytic->growing) {
    std::vector<double> sizes;
    for (const double bytes : analytic->growing->bucket_bytes) sizes.push_back(mib(bytes));
    json["growing"] = {{"bucket_mib", sizes}, {"backward_s", analytic->growing->backward_s}};
  }
  return json;
}

nlohmann::json quality_json(const std::optional<LeaveOneOut>& quality) {
  if (!quality) return nullptr;
  return {{"median_relative_error", quality->median_relative_error},
          {"largest_relative_error", quality->largest_relative_error},
          {"worst_bytes", quality->worst_bytes}};
}

nlohmann::json model_json(const PredictResult& result) {
  const SimulationOptions& simulation = result.search.simulation;
  nlohmann::json first_cap = nullptr;
  if (result.rule.first_cap_bytes) first_cap = mib(*result.rule.first_cap_bytes);
  return {{"world_size", result.world_size},
          {"extrapolated", result.ranges.has_value()},
          {"tensors", result.profile.names.size()},
          {"gradient_bytes", gradient_bytes(result)},
          {"backward_s", result.profile.backward_s},
          {"rule", result.rule_name},
          {"first_cap_mib", first_cap},
          {"alpha_s", result.alpha_beta.alpha_s},
          {"beta_s_per_byte", result.alpha_beta.beta_s_per_byte},
          {"alpha_beta_median_relative_error", result.alpha_beta.median_relative_error},
          {"alpha_beta_leave_one_out", quality_json(result.alpha_beta_quality)},
          {"curve_leave_one_out", quality_json(result.curve_quality)},
          {"gap_measured", result.gap_measured},
          {"overhead_s", simulation.overhead_s},
          {"copy_s_per_byte", simulation.copy_s_per_byte},
          {"compute_slowdown", simulation.compute_slowdown},
          {"comm_slowdown", simulation.comm_slowdown},
          {"channels", simulation.channels}};
}

nlohmann::json extrapolation_json(const Extrapolation& extrapolation) {
  nlohmann::json forms = nlohmann::json::array();
  for (size_t i = 0; i < extrapolation.forms.size(); ++i) {
    const FormPrediction& form = extrapolation.forms[i];
    forms.push_back({{"form", name_of(form.form)},
                     {"median_relative_error", form.median_relative_error},
                     {"best_uniform", uniform_json(form.best)},
                     {"minimax_backward_s", extrapolation.minimax.end_s[i]}});
  }
  return {{"fitted_worlds", extrapolation.fitted_worlds},
          {"forms", forms},
          {"minimax_regret",
           {{"cap_mib", mib(extrapolation.minimax.cap_bytes)},
            {"buckets", extrapolation.minimax.plan.buckets.size()},
            {"largest_regret", extrapolation.minimax.largest_regret}}},
          {"note", "extrapolated; low_s and high_s are the spread between three models, not a confidence interval"}};
}

nlohmann::json stragglers_json(const StragglerPrediction& stragglers, int64_t ranks) {
  return {{"samples", stragglers.samples},
          {"ranks", ranks},
          {"factor", stragglers.slowest.factor},
          {"tail_factor", stragglers.slowest.tail_factor},
          {"extrapolated", stragglers.slowest.beyond_samples},
          {"median_backward_s", stragglers.median_backward_s}};
}

nlohmann::json point_json(const SensitivityPoint& point) {
  return {{"cap_mib", mib(point.cap_bytes)},          {"buckets", point.buckets},
          {"backward_s", point.backward_s},           {"exposed_s", point.exposed_s},
          {"kept_backward_s", point.kept_backward_s}, {"within_1_percent_mib", {mib(point.near_low_bytes), mib(point.near_high_bytes)}}};
}

nlohmann::json sensitivity_json(const SensitivityPrediction& sensitivity) {
  nlohmann::json json = {{"points", nlohmann::json::array()}, {"elasticities", nlohmann::json::array()}};
  for (const SensitivityPoint& point : sensitivity.points) {
    json["points"].push_back(point_json(point));
    json["points"].back().update({{"influence", name_of(point.influence)}, {"factor", point.factor}});
  }
  const std::vector<double>& factors = sensitivity.map.factors;
  for (size_t i = 0; i < sensitivity.map.cells.size(); ++i) {
    json["map"].push_back(point_json(sensitivity.map.cells[i]));
    json["map"].back().update({{"latency_factor", factors[i / factors.size()]}, {"bandwidth_factor", factors[i % factors.size()]}});
  }
  for (const Elasticity& elasticity : sensitivity.elasticities) {
    json["elasticities"].push_back({{"influence", name_of(elasticity.influence)},
                                    {"value", elasticity.value},
                                    {"common_mib", {mib(elasticity.common_low_bytes), mib(elasticity.common_high_bytes)}},
                                    {"words", elasticity.words}});
  }
  return json;
}

}  // namespace

nlohmann::json predict_json(const PredictResult& result) {
  nlohmann::json json = {
      {"model", model_json(result)},    {"curve", curve_json(result)},         {"best_uniform", best_uniform_json(result)},
      {"best_plan", plan_json(result)}, {"baselines", baselines_json(result)}, {"analytic", analytic_json(result.analytic)}};
  if (result.stragglers) json["stragglers"] = stragglers_json(*result.stragglers, result.world_size);
  if (result.extrapolation) json["extrapolation"] = extrapolation_json(*result.extrapolation);
  if (result.sensitivity) json["sensitivity"] = sensitivity_json(*result.sensitivity);
  return json;
}

}  // namespace firkin::cli
