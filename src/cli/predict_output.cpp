#include "predict_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "firkin/base/units.h"

namespace firkin::cli {
namespace {

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kMiB);
}
double mib(double bytes) {
  return bytes / static_cast<double>(kMiB);
}

int64_t gradient_bytes(const PredictResult& result) {
  return std::accumulate(result.profile.bytes.begin(), result.profile.bytes.end(), int64_t{0});
}

// The best plan's advantage, as a fraction of the best uniform cap's time. At least 0: a plan with fewer buckets may be slower by less than
// the search's tolerance, and then it is taken for equal.
double plan_gain(const PredictResult& result) {
  return std::max(0.0, 1 - result.best_plan.timeline.end_s / result.best_uniform.timeline.end_s);
}

// Time lost against the best plan, as a fraction of its time; at least 0 for the same reason.
double regret_of(const Baseline& baseline) {
  return std::max(0.0, baseline.regret);
}

// The least and the most that the forms predict for one cap of the curve.
TimeRange form_range(const Extrapolation& extrapolation, size_t point, double median_s) {
  const auto [low, high] =
      std::ranges::minmax_element(extrapolation.forms, {}, [&](const FormPrediction& f) { return f.curve[point].backward_s; });
  return {low->curve[point].backward_s, median_s, high->curve[point].backward_s};
}

nlohmann::json curve_json(const PredictResult& result) {
  nlohmann::json curve = nlohmann::json::array();
  for (size_t i = 0; i < result.curve.size(); ++i) {
    const SweepPoint& point = result.curve[i];
    nlohmann::json row = {
        {"cap_mib", mib(point.cap_bytes)}, {"buckets", point.buckets}, {"backward_s", point.backward_s}, {"exposed_s", point.exposed_s}};
    if (result.extrapolation) {
      const TimeRange range = form_range(*result.extrapolation, i, point.backward_s);
      row["low_s"] = range.low_s;
      row["high_s"] = range.high_s;
    }
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
  return {{"buckets", buckets},
          {"backward_s", best.timeline.end_s},
          {"exposed_s", best.timeline.exposed_s},
          {"gain", plan_gain(result)},
          {"exact", best.exact},
          {"bucket_cap_mb_list", result.pytorch.mib},
          {"pytorch_reproduces_plan", result.pytorch.reproduces_plan}};
}

nlohmann::json baselines_json(const std::vector<Baseline>& baselines) {
  nlohmann::json rows = nlohmann::json::array();
  for (const Baseline& baseline : baselines) {
    rows.push_back({{"name", baseline.name},
                    {"description", baseline.description},
                    {"buckets", baseline.plan.buckets.size()},
                    {"backward_s", baseline.timeline.end_s},
                    {"exposed_s", baseline.timeline.exposed_s},
                    {"regret", regret_of(baseline)}});
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
          {"extrapolated", result.extrapolation.has_value()},
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

nlohmann::json sensitivity_json(const SensitivityPrediction& sensitivity) {
  nlohmann::json json = {{"points", nlohmann::json::array()}, {"elasticities", nlohmann::json::array()}};
  for (const SensitivityPoint& point : sensitivity.points) {
    json["points"].push_back({{"influence", name_of(point.influence)},
                              {"factor", point.factor},
                              {"cap_mib", mib(point.cap_bytes)},
                              {"buckets", point.buckets},
                              {"backward_s", point.backward_s},
                              {"exposed_s", point.exposed_s},
                              {"within_1_percent_mib", {mib(point.near_low_bytes), mib(point.near_high_bytes)}}});
  }
  for (const Elasticity& elasticity : sensitivity.elasticities) {
    json["elasticities"].push_back({{"influence", name_of(elasticity.influence)},
                                    {"value", elasticity.value},
                                    {"common_mib", {mib(elasticity.common_low_bytes), mib(elasticity.common_high_bytes)}},
                                    {"words", elasticity.words}});
  }
  return json;
}

std::string head_text(const PredictResult& result) {
  std::string text =
      fmt::format("{} tensors, {} of gradients, backward {}; {} ranks\nrule {}\n", result.profile.names.size(),
                  format_bytes(gradient_bytes(result)), format_seconds(result.profile.backward_s), result.world_size, result.rule_name);
  const double beta = result.alpha_beta.beta_s_per_byte;
  text += fmt::format("a(x) fits {} + x / ({}), with a median error of {:.1f} %\n", format_seconds(result.alpha_beta.alpha_s),
                      beta > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / beta) : "no limit", 100 * result.alpha_beta.median_relative_error);
  if (result.curve_quality) {
    text += fmt::format("leaving out a size of a(x): the table misses it by {:.1f} %, at worst {:.1f} %\n",
                        100 * result.curve_quality->median_relative_error, 100 * result.curve_quality->largest_relative_error);
  }
  if (!result.extrapolation) return text;
  return text + fmt::format(
                    "\nEXTRAPOLATED: {} ranks were not measured. Fitted to {} ranks. Ranges are\n"
                    "the spread between three models (ring, tree, pipelined tree), which is not a\n"
                    "confidence interval.\n",
                    result.world_size, fmt::join(result.extrapolation->fitted_worlds, ", "));
}

std::string curve_text(const PredictResult& result) {
  std::string text = fmt::format("\n{:>10} {:>8} {:>10} {:>10}{}\n", "cap MiB", "buckets", "backward", "exposed",
                                 result.extrapolation ? "   extrapolated, spread" : "");
  const auto least = std::ranges::min_element(result.curve, {}, &SweepPoint::backward_s);
  for (size_t i = 0; i < result.curve.size(); ++i) {
    const SweepPoint& point = result.curve[i];
    text += fmt::format("{:>10.6g} {:>8} {:>10} {:>10}", mib(point.cap_bytes), point.buckets, format_seconds(point.backward_s),
                        format_seconds(point.exposed_s));
    if (result.extrapolation) {
      const TimeRange range = form_range(*result.extrapolation, i, point.backward_s);
      text += fmt::format("   {} - {}", format_seconds(range.low_s), format_seconds(range.high_s));
    }
    text += result.curve.begin() + static_cast<std::ptrdiff_t>(i) == least ? " <\n" : "\n";
  }
  return text;
}

std::string minimax_text(const Extrapolation& extrapolation) {
  const MinimaxRegretCap& minimax = extrapolation.minimax;
  std::string text = fmt::format(
      "Safest uniform cap: {:.6g} MiB ({} buckets); at most {:.1f} % above the best,\n"
      "whichever of the models is right (extrapolated):\n",
      mib(minimax.cap_bytes), minimax.plan.buckets.size(), 100 * minimax.largest_regret);
  for (size_t i = 0; i < extrapolation.forms.size(); ++i) {
    const FormPrediction& form = extrapolation.forms[i];
    text += fmt::format("  {:<15} {:>10}; its own best cap {:.6g} MiB: {}\n", name_of(form.form), format_seconds(minimax.end_s[i]),
                        mib(form.best.cap_bytes), format_seconds(form.best.timeline.end_s));
  }
  return text;
}

std::string best_text(const PredictResult& result) {
  const UniformCap& uniform = result.best_uniform;
  std::string text =
      fmt::format("\nBest uniform cap: {:.6g} MiB ({} buckets): {}, {} exposed\n", mib(uniform.cap_bytes), uniform.plan.buckets.size(),
                  format_seconds(uniform.timeline.end_s), format_seconds(uniform.timeline.exposed_s));
  if (!uniform.exhaustive) text += "  (not every cap was tried: there are too many)\n";
  const Timeline& plan = result.best_plan.timeline;
  constexpr double kLeastShownGain = 5e-5;
  const std::string gain_text = plan_gain(result) < kLeastShownGain ? "no faster" : fmt::format("{:.2f} % faster", 100 * plan_gain(result));
  text += fmt::format("Best plan{}: {} buckets: {}, {} exposed; {}\n", result.best_plan.exact ? "" : " found", plan.buckets.size(),
                      format_seconds(plan.end_s), format_seconds(plan.exposed_s), gain_text);
  const BucketSpan& last = plan.buckets.back();
  text += fmt::format("  its last bucket: {}, ready {} after backward starts, takes {}\n", format_bytes(last.bytes),
                      format_seconds(last.ready_s), format_seconds(last.end_s - last.start_s));
  if (result.pytorch.reproduces_plan) text += "  as bucket_cap_mb_list for PyTorch 2.13 and later: see --json\n";
  if (result.extrapolation) text += minimax_text(*result.extrapolation);
  return text;
}

std::string baselines_text(const PredictResult& result) {
  std::string text = fmt::format("\n{:<15} {:>8} {:>10} {:>10} {:>9}\n", "baseline", "buckets", "backward", "exposed", "regret");
  for (const Baseline& baseline : result.baselines) {
    text += fmt::format("{:<15} {:>8} {:>10} {:>10} {:>7.1f} %\n", baseline.name, baseline.plan.buckets.size(),
                        format_seconds(baseline.timeline.end_s), format_seconds(baseline.timeline.exposed_s), 100 * regret_of(baseline));
  }
  return text;
}

std::string analytic_text(const PredictResult& result) {
  if (!result.analytic) return "";
  const EqualBuckets& even = result.analytic->even;
  return fmt::format("\nClosed form (equal buckets, gradients at an even rate): {:.4g} MiB,\n{:.3g} buckets, {} exposed\n",
                     mib(even.bucket_bytes), even.count, format_seconds(even.exposed_s));
}

std::string sensitivity_text(const SensitivityPrediction& sensitivity) {
  std::string text =
      fmt::format("\n{:<14} {:>7} {:>10} {:>8} {:>10} {:>10}\n", "influence", "factor", "cap MiB", "buckets", "backward", "exposed");
  for (const SensitivityPoint& point : sensitivity.points) {
    text += fmt::format("{:<14} {:>7.4g} {:>10.5g} {:>8} {:>10} {:>10}\n", name_of(point.influence), point.factor, mib(point.cap_bytes),
                        point.buckets, format_seconds(point.backward_s), format_seconds(point.exposed_s));
  }
  text += '\n';
  for (const Elasticity& elasticity : sensitivity.elasticities) {
    const size_t colon = std::min(elasticity.words.find(": "), elasticity.words.size());
    text += elasticity.words.substr(0, colon) + "\n " + elasticity.words.substr(std::min(colon + 1, elasticity.words.size())) + "\n";
  }
  return text;
}

}  // namespace

nlohmann::json predict_json(const PredictResult& result) {
  nlohmann::json json = {{"model", model_json(result)},
                         {"curve", curve_json(result)},
                         {"best_uniform", uniform_json(result.best_uniform)},
                         {"best_plan", plan_json(result)},
                         {"baselines", baselines_json(result.baselines)},
                         {"analytic", analytic_json(result.analytic)}};
  if (result.extrapolation) json["extrapolation"] = extrapolation_json(*result.extrapolation);
  if (result.sensitivity) json["sensitivity"] = sensitivity_json(*result.sensitivity);
  return json;
}

std::string predict_table(const PredictResult& result) {
  std::string text = head_text(result) + curve_text(result) + best_text(result) + baselines_text(result) + analytic_text(result);
  if (result.sensitivity) text += sensitivity_text(*result.sensitivity);
  return text;
}

}  // namespace firkin::cli
