// Step times: over bucket caps, and of strategies; what `firkin tune` and `firkin bench step` measure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/run.h"

namespace firkin {

// One bucket cap. Times are seconds a step.
struct CurveRow {
  double cap_mib = 0;
  std::optional<int64_t> buckets = {};
  std::optional<double> predicted_s = {};
  std::optional<double> measured_s = {};
  std::optional<Interval> measured_ci_s = {};      // 95 %
  std::optional<double> error = {};                // predicted / measured - 1
  std::optional<Interval> predicted_range_s = {};  // in which 95 % of the validation study's caps were measured (CapPrediction)
  std::optional<int64_t> outliers = {};            // blocks that stand out
  std::optional<Interval> modes_s = {};            // where the samples have two modes: those
};

// One strategy, or one strategy under one cap. Seconds a step, and bytes a rank.
struct StrategyRow {
  std::string strategy;
  std::optional<double> cap_mib = {};
  std::optional<int64_t> buckets = {};
  double measured_s = 0;
  std::optional<Interval> measured_ci_s = {};
  std::optional<double> predicted_s = {};
  std::optional<double> exposed_s = {};        // measured_s minus the step without communication; noise can make it negative
  std::optional<double> comm_s = {};           // from the end of backward to the last gradient
  std::optional<double> comm_share = {};       // comm_s / measured_s
  std::optional<double> rank_spread = {};      // slowest rank less fastest, as a fraction
  std::optional<double> communication_s = {};  // of its collectives alone
  std::optional<double> overlap_percent = {};  // of communication_s, hidden behind backward (OSU's definition)
  std::optional<double> per_tensor_us = {};    // exposed_s per tensor, microseconds
  std::optional<double> tokens_per_s = {};     // of all ranks
  std::optional<int64_t> peak_memory_bytes = {}, memory_between_steps_bytes = {};
  std::optional<double> ratio_to_torch = {};  // paired
  std::optional<Interval> ratio_to_torch_ci = {};
  std::optional<int64_t> outliers = {};
  std::optional<Interval> modes_s = {};
};

// Raw times in seconds; [setting][block], the last [setting][step][rank].
struct StepSamples {
  std::vector<std::string> settings = {};
  std::vector<std::vector<double>> step_s = {}, comm_s = {}, communication_s = {};
  std::vector<std::vector<double>> calibration_step_s = {};  // of none and the calibration's runs, in blocks of their own
  std::vector<std::vector<double>> race_step_s = {};         // of the caps that were raced, in blocks of their own
  std::vector<std::vector<std::vector<double>>> raw_step_s_by_rank = {};
};

// One model and shape of `firkin bench step`.
struct StepConfiguration {
  ModelDescription model;
  std::string status;  // "measured", or "out of memory"
  std::optional<std::string> reason = {};
  std::vector<StrategyRow> strategies = {};
  StepSamples samples;
};

// Strategies by name, and what stands beside them.
inline constexpr const char* kTorchDefaultName = "torch default";  // c10d::Reducer, 1 MiB and then 25 MiB
inline constexpr const char* kOrderedName = "ordered";
inline constexpr const char* kChosenCapName = "chosen cap";  // of `tune`

// Names that rows of other sections have as well.
inline constexpr const char* kStrategyKey = "strategy";
inline constexpr const char* kCapKey = "cap_mib";
inline constexpr const char* kBucketsKey = "buckets";
inline constexpr const char* kPredictedKey = "predicted_s";
inline constexpr const char* kMeasuredKey = "measured_s";
inline constexpr const char* kExposedKey = "exposed_s";
inline constexpr const char* kCurveKey = "curve";
inline constexpr const char* kHooksKey = "hooks";
inline constexpr const char* kHookKey = "hook";
inline constexpr const char* kStepSecondsKey = "step_s";
inline constexpr const char* kTokensPerSecondKey = "tokens_per_s";
inline constexpr const char* kRawStepsKey = "raw_step_s_by_rank";
inline constexpr const char* kCommunicationSecondsKey = "communication_s";

nlohmann::json curve_json(const std::vector<CurveRow>& curve);
nlohmann::json curve_row_json(const CurveRow& row);
CurveRow read_curve_row(const JsonFields& fields);
std::vector<CurveRow> read_curve(const std::vector<JsonFields>& rows);  // by ascending cap

nlohmann::json strategies_json(const std::vector<StrategyRow>& rows);
std::vector<StrategyRow> read_strategies(const std::vector<JsonFields>& rows);

nlohmann::json samples_json(const StepSamples& samples);
StepSamples read_step_samples(const JsonFields& fields);

nlohmann::json configurations_json(const std::vector<StepConfiguration>& configurations);
std::vector<StepConfiguration> read_configurations(const std::vector<JsonFields>& rows);

// Throws FieldError unless the row has the times that an answer is made of.
void require_times(const JsonFields& fields);

Table curve_table(const std::vector<CurveRow>& curve, Medium medium);
Table strategy_table(const std::vector<StrategyRow>& rows, Medium medium);
Table strategy_costs_table(const std::vector<StrategyRow>& rows);  // in the terminal: the columns that 80 characters do not hold

// steps.csv: one line per configuration and strategy.
std::string steps_csv(const std::vector<StepConfiguration>& configurations);

}  // namespace firkin
