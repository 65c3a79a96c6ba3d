#include "results/tune.h"

#include <algorithm>
#include <cmath>

namespace firkin {
namespace {

using nlohmann::json;

constexpr const char* kBestPredicted = "best_predicted";
constexpr const char* kBestMeasured = "best_measured";

// Choices against others, those that were measured.
constexpr std::pair<const char*, std::optional<Gain> TuneAnswer::*> kGains[] = {
    {"over_default", &TuneAnswer::over_default},
    {"planned_over_default", &TuneAnswer::planned_over_default},
    {"ordered_over_default", &TuneAnswer::ordered_over_default},
    {"ordered_over_best_cap", &TuneAnswer::ordered_over_best_cap}};

constexpr Field<TuneAnswer> kAnswerFields[] = {{"indifference_set", &TuneAnswer::indifference_set, Unit::kMib},
                                               {kRegretKey, &TuneAnswer::regret, Unit::kShare},
                                               {"regret_ci", &TuneAnswer::regret_ci, Unit::kChange},
                                               {"plan_mib", &TuneAnswer::plan_mib, Unit::kMib},
                                               {"plan_caps_mib", &TuneAnswer::plan_caps_mib, Unit::kMib}};

struct GainFields {
  double ratio = 1;
  std::optional<Interval> ratio_ci;
};
constexpr Field<GainFields> kGainFields[] = {{kRatioKey, &GainFields::ratio, Unit::kRatio},
                                             {kRatioIntervalKey, &GainFields::ratio_ci, Unit::kRatio}};

constexpr Field<CalibrationRun> kCalibrationRunFields[] = {{kNameKey, &CalibrationRun::name},
                                                           {kBucketsKey, &CalibrationRun::buckets, Unit::kCount},
                                                           {kMeasuredKey, &CalibrationRun::measured_s, Unit::kSeconds}};

constexpr Field<SimulationOptions> kSimulationFields[] = {{kOverheadKey, &SimulationOptions::overhead_s, Unit::kDifference},
                                                          {"copy_s_per_byte", &SimulationOptions::copy_s_per_byte, Unit::kPlain},
                                                          {"compute_slowdown", &SimulationOptions::compute_slowdown, Unit::kRatio},
                                                          {"comm_slowdown", &SimulationOptions::comm_slowdown, Unit::kRatio},
                                                          {"channels", &SimulationOptions::channels, Unit::kCount}};

constexpr Field<Calibration> kFitFields[] = {{kMedianErrorKey, &Calibration::median_relative_error, Unit::kChange},
                                             {"fitted", &Calibration::fitted},
                                             {"residual", &Calibration::residual, Unit::kShare},
                                             {"standard_errors", &Calibration::standard_errors, Unit::kPlain},
                                             {"warning", &Calibration::warning}};

constexpr Field<HookGain> kHookGainFields[] = {{kHookKey, &HookGain::hook},
                                               {kCapKey, &HookGain::cap_mib, Unit::kMib},
                                               {kPredictedKey, &HookGain::predicted_s, Unit::kSeconds},
                                               {kMeasuredKey, &HookGain::measured_s, Unit::kSeconds},
                                               {kRatioKey, &HookGain::ratio, Unit::kRatio},
                                               {kRatioIntervalKey, &HookGain::ratio_ci, Unit::kRatio}};

json gain_json(const Gain& gain) {
  return to_json<GainFields>(kGainFields, {gain.ratio, gain.ratio_ci});
}

std::optional<Gain> read_gain(const std::optional<JsonFields>& fields) {
  if (!fields) return std::nullopt;
  const auto read = from_json<GainFields>(kGainFields, *fields);
  return Gain{read.ratio, read.ratio_ci.value_or(Interval{0, HUGE_VAL})};
}

}  // namespace

json simulation_json(const SimulationOptions& options) {
  return to_json<SimulationOptions>(kSimulationFields, options);
}

SimulationOptions read_simulation(const JsonFields& fields) {
  return from_json<SimulationOptions>(kSimulationFields, fields);
}

void write_answer(const TuneAnswer& answer, json& document) {
  document.update(to_json<TuneAnswer>(kAnswerFields, answer));
  if (answer.plan_mib.empty()) document.erase(kAnswerFields[3].key);
  if (answer.plan_caps_mib.empty()) document.erase(kAnswerFields[4].key);
  document[kBestPredicted] = curve_row_json(answer.best_predicted);
  document[kBestMeasured] = curve_row_json(answer.best_measured);
  for (const auto& [key, gain] : kGains) {
    if (answer.*gain) document[key] = gain_json(*(answer.*gain));
  }
  if (!answer.hooks.empty()) document[kHooksKey] = rows_to_json<HookGain>(kHookGainFields, answer.hooks);
}

TuneAnswer read_answer(const JsonFields& document) {
  TuneAnswer answer = from_json<TuneAnswer>(kAnswerFields, document);
  for (const auto& [key, row] : {std::pair{kBestPredicted, &answer.best_predicted}, {kBestMeasured, &answer.best_measured}}) {
    require_times(document.object(key));
    *row = read_curve_row(document.object(key));
  }
  if (answer.indifference_set.empty()) document.fail(kAnswerFields[0].key, "missing or empty", "an array of caps in MiB");
  std::ranges::sort(answer.indifference_set);
  for (const auto& [key, gain] : kGains) answer.*gain = read_gain(document.maybe_object(key));
  answer.hooks = rows_from_json<HookGain>(kHookGainFields, document.maybe_objects(kHooksKey));
  return answer;
}

json calibration_json(const CalibrationSection& calibration) {
  json object = simulation_json(calibration.fit.options);
  object.update(to_json<Calibration>(kFitFields, calibration.fit));
  object["runs"] = rows_to_json<CalibrationRun>(kCalibrationRunFields, calibration.runs);
  return object;
}

CalibrationSection read_calibration(const JsonFields& fields) {
  CalibrationSection calibration;
  calibration.fit = from_json<Calibration>(kFitFields, fields);
  calibration.fit.options = read_simulation(fields);
  calibration.runs = rows_from_json<CalibrationRun>(kCalibrationRunFields, fields.maybe_objects("runs"));
  return calibration;
}

bool is_tied(const TuneAnswer& answer, double cap_mib) {
  return std::ranges::any_of(answer.indifference_set, [&](double cap) { return std::abs(cap - cap_mib) < 1e-9 * cap_mib; });
}

std::string remark_on(const TuneAnswer& answer, double cap_mib) {
  const bool predicted = cap_mib == answer.best_predicted.cap_mib;
  const bool measured = cap_mib == answer.best_measured.cap_mib;
  if (predicted && measured) return "predicted and measured best";
  if (predicted) return "predicted best";
  if (measured) return "measured best";
  return is_tied(answer, cap_mib) ? "tied" : "";
}

}  // namespace firkin
