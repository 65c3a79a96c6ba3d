#include "results/tune.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "firkin/base/units.h"

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

constexpr Field<DecisionSection> kDecisionFields[] = {{"outcome", &DecisionSection::outcome},
                                                      {kCapKey, &DecisionSection::cap_mib, Unit::kMib},
                                                      {"lowest_cap_mib", &DecisionSection::lowest_cap_mib, Unit::kMib},
                                                      {"highest_cap_mib", &DecisionSection::highest_cap_mib, Unit::kMib},
                                                      {kPredictedKey, &DecisionSection::predicted_s, Unit::kSeconds},
                                                      {kMeasuredKey, &DecisionSection::measured_s, Unit::kSeconds},
                                                      {"predicted_to_default", &DecisionSection::predicted_to_default, Unit::kRatio},
                                                      {"expected_regret", &DecisionSection::expected_regret, Unit::kShare},
                                                      {"tied_mib", &DecisionSection::tied_mib, Unit::kMib},
                                                      {"level", &DecisionSection::level, Unit::kRatio}};

constexpr const char *kDecision = "decision", *kOverDefault = "over_default";

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

constexpr const char* kLatency = "latency_factor";  // older results have none

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

// A result from before there were decisions: what it measured of the cap that it predicted.
DecisionSection decision_of_older(const TuneAnswer& answer) {
  DecisionSection section{.cap_mib = answer.best_predicted.cap_mib,
                          .predicted_s = answer.best_predicted.predicted_s,
                          .measured_s = answer.best_predicted.measured_s,
                          .over_default = answer.over_default,
                          .tied_mib = answer.indifference_set,
                          .inferred = true};
  Outcome outcome = Outcome::kNotMeasured;
  if (const auto& gain = answer.over_default) {
    outcome = gain->ratio_ci.high < 1 ? Outcome::kGain : gain->ratio_ci.low > 1 ? Outcome::kDefaultFaster : Outcome::kNothingToGain;
  }
  section.outcome = name_of(outcome);
  return section;
}

}  // namespace

DecisionSection decision_section(const Decision& decision, std::span<const CapPrediction> raced) {
  const CapPrediction& choice = raced[decision.standing.choice];
  DecisionSection section{.outcome = std::string(name_of(decision.outcome)),
                          .cap_mib = mib(choice.cap_bytes),
                          .lowest_cap_mib = mib(choice.lowest_cap_bytes),
                          .predicted_s = choice.step_s,
                          .predicted_to_default = decision.predicted_to_default,
                          .expected_regret = decision.standing.expected_regret,
                          .level = decision.level};
  if (choice.highest_cap_bytes != std::numeric_limits<int64_t>::max()) section.highest_cap_mib = mib(choice.highest_cap_bytes);
  if (decision.to_default) section.over_default = Gain{decision.to_default->ratio, decision.to_default->interval};
  for (const size_t i : decision.standing.tied) section.tied_mib.push_back(mib(raced[i].cap_bytes));
  return section;
}

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
  if (!answer.decision.inferred) {
    document[kDecision] = to_json<DecisionSection>(kDecisionFields, answer.decision);
    if (answer.decision.over_default) document[kDecision][kOverDefault] = gain_json(*answer.decision.over_default);
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
  if (const auto decision = document.maybe_object(kDecision)) {
    answer.decision = from_json<DecisionSection>(kDecisionFields, *decision);
    answer.decision.over_default = read_gain(decision->maybe_object(kOverDefault));
  } else {
    answer.decision = decision_of_older(answer);
  }
  answer.hooks = rows_from_json<HookGain>(kHookGainFields, document.maybe_objects(kHooksKey));
  return answer;
}

json calibration_json(const CalibrationSection& calibration) {
  json object = simulation_json(calibration.fit.options);
  if (calibration.fit.latency_factor != 1) object[kLatency] = calibration.fit.latency_factor;
  object.update(to_json<Calibration>(kFitFields, calibration.fit));
  object["runs"] = rows_to_json<CalibrationRun>(kCalibrationRunFields, calibration.runs);
  return object;
}

CalibrationSection read_calibration(const JsonFields& fields) {
  CalibrationSection calibration;
  calibration.fit = from_json<Calibration>(kFitFields, fields);
  calibration.fit.options = read_simulation(fields);
  calibration.fit.latency_factor = fields.maybe_positive(kLatency).value_or(1);
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
