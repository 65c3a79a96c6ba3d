#include "results/steps.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/csv.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr unsigned kAside = kSecondTable | kPage | kCsv;

// Fields that both kinds of rows have.
constexpr const char* kMeasuredInterval = "measured_ci_s";

constexpr Field<CurveRow> kCurveFields[] = {{kCapKey, &CurveRow::cap_mib, Unit::kMib, "cap MiB"},
                                            {kBucketsKey, &CurveRow::buckets, Unit::kCount, "buckets"},
                                            {kPredictedKey, &CurveRow::predicted_s, Unit::kSeconds, "predicted"},
                                            {kMeasuredKey, &CurveRow::measured_s, Unit::kSeconds, "measured"},
                                            {kMeasuredInterval, &CurveRow::measured_ci_s, Unit::kSeconds, "95 % interval"},
                                            {"error", &CurveRow::error, Unit::kChange, "error"},
                                            {"predicted_range_s", &CurveRow::predicted_range_s, Unit::kSeconds, "95 % of the study", kPage},
                                            {kOutliersKey, &CurveRow::outliers, Unit::kCount, "outliers", kPage},
                                            {kModesKey, &CurveRow::modes_s, Unit::kSeconds, "two modes", kPage}};

constexpr Field<StrategyRow> kStrategyFields[] = {
    {kStrategyKey, &StrategyRow::strategy, Unit::kText, "strategy", kEverywhere | kSecondTable},
    {kCapKey, &StrategyRow::cap_mib, Unit::kMib, "MiB", kEverywhere | kSecondTable},
    {kBucketsKey, &StrategyRow::buckets, Unit::kCount, "buckets"},
    {kMeasuredKey, &StrategyRow::measured_s, Unit::kSeconds, "step"},
    {kMeasuredInterval, &StrategyRow::measured_ci_s, Unit::kSeconds, "95 % interval"},
    {kPredictedKey, &StrategyRow::predicted_s, Unit::kSeconds, "predicted"},
    {"rank_spread", &StrategyRow::rank_spread, Unit::kShare, "spread", kAside},
    {"comm_s", &StrategyRow::comm_s, Unit::kDifference, "after bw"},
    {"comm_share", &StrategyRow::comm_share, Unit::kShare, "share", kSecondTable | kCsv},
    {kExposedKey, &StrategyRow::exposed_s, Unit::kDifference, "exposed"},
    {"overlap_percent", &StrategyRow::overlap_percent, Unit::kPlain, "ovlp %", kAside},
    {kCommunicationSecondsKey, &StrategyRow::communication_s, Unit::kDifference, "alone", kHidden},
    {"per_tensor_us", &StrategyRow::per_tensor_us, Unit::kPlain, "per tensor", kCsv},
    {"peak_memory_bytes", &StrategyRow::peak_memory_bytes, Unit::kBytes, "memory", kAside},
    {"memory_between_steps_bytes", &StrategyRow::memory_between_steps_bytes, Unit::kBytes, "between steps", kHidden},
    {kTokensPerSecondKey, &StrategyRow::tokens_per_s, Unit::kCount, "tokens/s", kAside},
    {"ratio_to_torch", &StrategyRow::ratio_to_torch, Unit::kRatio, "x torch", kAside},
    {"ratio_to_torch_ci", &StrategyRow::ratio_to_torch_ci, Unit::kRatio, "95 % interval", kSecondTable | kPage},
    {kOutliersKey, &StrategyRow::outliers, Unit::kCount, "outliers", kPage},
    {kModesKey, &StrategyRow::modes_s, Unit::kSeconds, "two modes", kPage}};

constexpr Field<StepConfiguration> kConfigurationFields[] = {{"status", &StepConfiguration::status, Unit::kText, "status"},
                                                             {"reason", &StepConfiguration::reason, Unit::kText, "reason", kHidden}};
constexpr Field<StepSamples> kSampleFields[] = {{kSettingsKey, &StepSamples::settings}};
constexpr const char* kComm = kStrategyFields[7].key;
constexpr const char *kCalibrationStepsKey = "calibration_step_s", *kRaceKey = "race_step_s";

}  // namespace

json curve_row_json(const CurveRow& row) {
  return to_json<CurveRow>(kCurveFields, row);
}

json curve_json(const std::vector<CurveRow>& curve) {
  return rows_to_json<CurveRow>(kCurveFields, curve);
}

CurveRow read_curve_row(const JsonFields& fields) {
  return from_json<CurveRow>(kCurveFields, fields);
}

std::vector<CurveRow> read_curve(const std::vector<JsonFields>& rows) {
  std::vector<CurveRow> curve = rows_from_json<CurveRow>(kCurveFields, rows);
  std::ranges::stable_sort(curve, {}, &CurveRow::cap_mib);
  return curve;
}

void require_times(const JsonFields& fields) {
  fields.positive(kPredictedKey);
  fields.positive(kMeasuredKey);
}

json strategies_json(const std::vector<StrategyRow>& rows) {
  return rows_to_json<StrategyRow>(kStrategyFields, rows);
}

std::vector<StrategyRow> read_strategies(const std::vector<JsonFields>& rows) {
  return rows_from_json<StrategyRow>(kStrategyFields, rows);
}

json samples_json(const StepSamples& samples) {
  json object = {{kStepSecondsKey, samples.step_s}};
  const auto add = [&object](const char* key, const auto& values) {
    if (!values.empty()) object[key] = values;
  };
  add(kSampleFields[0].key, samples.settings);
  add(kComm, samples.comm_s);
  add(kCommunicationSecondsKey, samples.communication_s);
  add(kRawStepsKey, samples.raw_step_s_by_rank);
  add(kCalibrationStepsKey, samples.calibration_step_s);
  add(kRaceKey, samples.race_step_s);
  return object;
}

StepSamples read_step_samples(const JsonFields& fields) {
  StepSamples samples = from_json<StepSamples>(kSampleFields, fields);
  samples.step_s = fields.maybe_series(kStepSecondsKey);
  samples.comm_s = fields.maybe_series(kComm);
  samples.communication_s = fields.maybe_series(kCommunicationSecondsKey);
  samples.calibration_step_s = fields.maybe_series(kCalibrationStepsKey);
  samples.race_step_s = fields.maybe_series(kRaceKey);
  if (fields.has(kRawStepsKey)) samples.raw_step_s_by_rank = fields.nested_series(kRawStepsKey);
  return samples;
}

json configurations_json(const std::vector<StepConfiguration>& configurations) {
  json rows = json::array();
  for (const StepConfiguration& configuration : configurations) {
    json row = to_json<StepConfiguration>(kConfigurationFields, configuration);
    row[kModelKey] = model_json(configuration.model);
    if (!configuration.strategies.empty()) {
      row[kStrategiesKey] = strategies_json(configuration.strategies);
      row[kSamplesKey] = samples_json(configuration.samples);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<StepConfiguration> read_configurations(const std::vector<JsonFields>& rows) {
  std::vector<StepConfiguration> configurations;
  for (const JsonFields& fields : rows) {
    StepConfiguration configuration;
    configuration.model = read_model(fields.object(kModelKey));
    configuration.status = fields.maybe_text(kConfigurationFields[0].key).value_or("measured");
    configuration.reason = fields.maybe_text(kConfigurationFields[1].key);
    configuration.strategies = read_strategies(fields.maybe_objects(kStrategiesKey));
    if (const auto samples = fields.maybe_object(kSamplesKey)) configuration.samples = read_step_samples(*samples);
    configurations.push_back(std::move(configuration));
  }
  return configurations;
}

Table curve_table(const std::vector<CurveRow>& curve, Medium medium) {
  return table_of<CurveRow>(kCurveFields, curve, medium, "Step time by bucket cap (error: predicted / measured − 1)");
}

Table strategy_table(const std::vector<StrategyRow>& rows, Medium medium) {
  return table_of<StrategyRow>(kStrategyFields, rows, medium, "Step time by strategy");
}

Table strategy_costs_table(const std::vector<StrategyRow>& rows) {
  return table_of<StrategyRow>(kStrategyFields, rows, Medium::kTerminal, kSecondTable);
}

std::string steps_csv(const std::vector<StepConfiguration>& configurations) {
  const auto joined = [](std::vector<std::string> model, const std::string& status, const std::vector<std::string>& row) {
    model.push_back(status);
    model.insert(model.end(), row.begin(), row.end());
    return model;
  };
  const std::vector<std::string> columns = csv_names<StrategyRow>(kStrategyFields);
  std::vector<std::vector<std::string>> lines;
  for (const StepConfiguration& configuration : configurations) {
    const std::vector<std::string> model = model_csv(configuration.model);
    for (const StrategyRow& row : configuration.strategies)
      lines.push_back(joined(model, configuration.status, csv_line<StrategyRow>(kStrategyFields, row)));
    if (configuration.strategies.empty()) lines.push_back(joined(model, configuration.status, std::vector<std::string>(columns.size())));
  }
  return csv_lines(joined(model_csv_names(), kConfigurationFields[0].key, columns), lines);
}

}  // namespace firkin
