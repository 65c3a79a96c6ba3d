#include "tune_output.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "results.h"

namespace firkin::cli {
namespace {

double prediction_error(const CurvePoint& point) {
  return point.predicted.step_s / point.measured.step_s - 1;
}

nlohmann::json curve_json(const CurvePoint& point) {
  return {{"cap_mib", mib(point.predicted.cap_bytes)},
          {"buckets", point.predicted.buckets},
          {"predicted_s", point.predicted.step_s},
          {"measured_s", point.measured.step_s},
          {"measured_ci_s", interval_json(point.measured.step_ci)},
          {"error", prediction_error(point)}};
}

nlohmann::json strategy_json(const Measurement& m, const Measurement& none) {
  return {{"strategy", m.name},
          {"buckets", m.buckets},
          {"measured_s", m.step_s},
          {"measured_ci_s", interval_json(m.step_ci)},
          {"exposed_s", none.step_s * (m.to_none.ratio - 1)},
          {"comm_s", m.comm_s}};
}

nlohmann::json profile_json(const ReadyProfile& profile) {
  nlohmann::json tensors = nlohmann::json::array();
  for (size_t i = 0; i < profile.tensors.names.size(); ++i) {
    tensors.push_back({{"name", profile.tensors.names[i]}, {"bytes", profile.tensors.bytes[i]}, {"ready_s", profile.tensors.ready_s[i]}});
  }
  return {{"backward_s", profile.tensors.backward_s},
          {"bare_backward_s", profile.bare_backward_s},
          {"hook_perturbation", profile.hooked_to_bare.ratio - 1},
          {"tensors", tensors}};
}

nlohmann::json calibration_json(const TuneCalibration& calibration) {
  const Calibration& fit = calibration.fit;
  nlohmann::json runs = nlohmann::json::array();
  for (const Measurement& run : calibration.runs)
    runs.push_back({{"name", run.name}, {"buckets", run.buckets}, {"measured_s", run.step_s}});
  return {{"runs", runs},
          {"fitted", fit.fitted},
          {"overhead_s", fit.options.overhead_s},
          {"copy_s_per_byte", fit.options.copy_s_per_byte},
          {"compute_slowdown", fit.options.compute_slowdown},
          {"comm_slowdown", fit.options.comm_slowdown},
          {"channels", fit.options.channels},
          {"median_relative_error", fit.median_relative_error},
          {"warning", fit.warning}};
}

std::string cap_text(const CurvePoint& point) {
  return fmt::format("{:.3g} MiB", mib(point.predicted.cap_bytes));
}

// Time lost by trusting the prediction, as a fraction of the best measured time. Noise can make the paired ratio come out below 1; nothing
// is lost then.
double regret_of(const TuneResult& result) {
  return std::max(0.0, result.predicted_to_best.ratio - 1);
}

std::string answer(const TuneResult& result) {
  const CurvePoint& predicted = result.curve[result.best_predicted];
  const CurvePoint& measured = result.curve[result.best_measured];
  std::vector<std::string> same;
  for (const size_t i : result.indifference) same.push_back(cap_text(result.curve[i]));
  const PairedRatio& regret = result.predicted_to_best;
  return fmt::format(
      "Predicted best cap: {} ({} buckets). Measured best: {}.\n"
      "Trusting the prediction costs {:.1f} % (95 % interval {:.1f} to {:.1f} %).\n"
      "Cannot be told from the best: {}.\n",
      cap_text(predicted), predicted.predicted.buckets, cap_text(measured), 100 * regret_of(result), 100 * (regret.interval.low - 1),
      100 * (regret.interval.high - 1), fmt::join(same, ", "));
}

std::string mark(const TuneResult& result, size_t point) {
  std::string text;
  if (point == result.best_predicted) text += " < predicted best";
  if (point == result.best_measured) text += text.empty() ? " < measured best" : " and measured";
  return text;
}

}  // namespace

nlohmann::json allreduce_json(const AllReduceTable& table) {
  nlohmann::json rows = nlohmann::json::array();
  for (const AllReduceRow& row : table) {
    nlohmann::json json = {{"bytes", row.bytes}, {"world_size", row.world_size}, {"median_s", row.median_s}};
    const auto add = [&json](const char* name, const auto& value) {
      if (value) json[name] = *value;
    };
    add("gap_s", row.gap_s);
    add("mean_s", row.mean_s);
    add("stdev_s", row.stdev_s);
    add("min_s", row.min_s);
    add("max_s", row.max_s);
    add("samples", row.samples);
    rows.push_back(std::move(json));
  }
  return rows;
}

nlohmann::json tune_json(const TuneResult& result) {
  nlohmann::json json;
  json["profile"] = profile_json(result.profile);
  json["allreduce"] = allreduce_json(result.allreduce);
  json["alpha_beta"] = {{"alpha_s", result.alpha_beta.alpha_s},
                        {"beta_s_per_byte", result.alpha_beta.beta_s_per_byte},
                        {"median_relative_error", result.alpha_beta.median_relative_error}};
  json["calibration"] = calibration_json(result.calibration);
  for (const CurvePoint& point : result.curve) json["curve"].push_back(curve_json(point));
  for (const Prediction& p : result.dense_curve) {
    json["dense_curve"].push_back({{"cap_mib", mib(p.cap_bytes)}, {"buckets", p.buckets}, {"predicted_s", p.step_s}});
  }
  for (const Measurement& m : result.strategies) json["strategies"].push_back(strategy_json(m, result.strategies[0]));
  json["best_predicted"] = curve_json(result.curve[result.best_predicted]);
  json["best_measured"] = curve_json(result.curve[result.best_measured]);
  for (const size_t i : result.indifference) json["indifference_set"].push_back(mib(result.curve[i].predicted.cap_bytes));
  json["regret"] = regret_of(result);
  json["regret_ci"] = {{"low", result.predicted_to_best.interval.low - 1}, {"high", result.predicted_to_best.interval.high - 1}};
  std::vector<std::string> names;
  for (const Measurement& m : result.strategies) names.push_back(m.name);
  for (const CurvePoint& point : result.curve) names.push_back(point.measured.name);
  json["samples"] = {{"settings", names},
                     {"step_s", result.steps.step_s},
                     {"comm_s", result.steps.comm_s},
                     {"raw_step_s_by_rank", result.steps.raw_step_s}};
  return json;
}

std::string tune_table(const TuneResult& result) {
  std::string text =
      fmt::format("{:>8} {:>8} {:>10} {:>10}  {:<21} {:>7}\n", "cap MiB", "buckets", "predicted", "measured", "95 % interval", "error");
  for (size_t i = 0; i < result.curve.size(); ++i) {
    const CurvePoint& point = result.curve[i];
    const Measurement& m = point.measured;
    const std::string interval = fmt::format("{} - {}", format_seconds(m.step_ci.low), format_seconds(m.step_ci.high));
    text += fmt::format("{:>8.3g} {:>8} {:>10} {:>10}  {:<21} {:>+6.1f}%{}\n", mib(point.predicted.cap_bytes), m.buckets,
                        format_seconds(point.predicted.step_s), format_seconds(m.step_s), interval, 100 * prediction_error(point),
                        mark(result, i));
  }
  text += fmt::format("\n{:<10} {:>8} {:>10}  {:<21} {:>10} {:>12}\n", "strategy", "buckets", "measured", "95 % interval", "exposed",
                      "after backw.");
  const double none_s = result.strategies[0].step_s;
  for (const Measurement& m : result.strategies) {
    const std::string interval = fmt::format("{} - {}", format_seconds(m.step_ci.low), format_seconds(m.step_ci.high));
    text += fmt::format("{:<10} {:>8} {:>10}  {:<21} {:>10} {:>12}\n", m.name, m.buckets, format_seconds(m.step_s), interval,
                        format_seconds(none_s * (m.to_none.ratio - 1)), format_seconds(m.comm_s));
  }
  return text + "\n" + answer(result);
}

}  // namespace firkin::cli
