// What a results.json says, as plain structs: the one place that knows its fields' names.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/tensor_profile.h"
#include "firkin/stats/interval.h"

namespace firkin {

// One bucket cap. Times are seconds a step.
struct CurveRow {
  double cap_mib = 0;
  std::optional<int64_t> buckets;
  std::optional<double> predicted_s;
  std::optional<double> measured_s;
  std::optional<Interval> measured_ci_s;  // 95 %
  std::optional<double> error;            // predicted / measured - 1
};

struct StrategyRow {
  std::string strategy;
  std::optional<int64_t> buckets;
  double measured_s = 0;
  std::optional<Interval> measured_ci_s;
  std::optional<double> predicted_s;
  std::optional<double> exposed_s;  // measured_s minus the step without communication; noise can make it negative
  std::optional<double> comm_s;     // from the end of backward to the last gradient
};

// One chunk size of `firkin bench chunks`: the same data in `calls` all-reduces that are under way together.
struct ChunksRow {
  int64_t chunk_bytes = 0;
  int64_t calls = 0;
  double total_s = 0;                  // median, of all calls together
  std::optional<Interval> total_ci_s;  // 95 %
};

// A time in which rank 0 was busy with `activity` ("compute" or "communication"), in seconds since the step began.
struct BusyPeriod {
  std::string activity;
  double start_s = 0;
  double end_s = 0;
};

// One setting of `firkin trace`, and one step of it.
struct TraceRow {
  std::string name;
  std::vector<BusyPeriod> timeline;
};

// The answer of `firkin tune`.
struct TuneAnswer {
  CurveRow best_predicted;
  CurveRow best_measured;
  std::vector<double> indifference_set;  // caps in MiB
  double regret = 0;                     // step at best_predicted over step at best_measured, minus 1
  std::optional<Interval> regret_ci;
};

// Name and value as a person reads them.
using Facts = std::vector<std::pair<std::string, std::string>>;

struct Results {
  std::string command;
  std::vector<std::string> command_line;
  std::string started;
  Facts environment;
  Facts model;
  std::optional<TensorProfile> profile;
  std::optional<double> hook_perturbation;
  AllReduceTable allreduce;
  std::optional<AlphaBeta> alpha_beta;
  std::vector<ChunksRow> chunks;
  std::vector<TraceRow> traces;
  std::vector<CurveRow> curve;        // by ascending cap
  std::vector<CurveRow> dense_curve;  // by ascending cap, predictions only
  std::vector<StrategyRow> strategies;
  std::optional<TuneAnswer> answer;
  std::string warning;  // of the calibration
};

// Throws InputError naming the field that is missing or malformed.
Results parse_results(const nlohmann::json& results);

}  // namespace firkin
