// What ran when in a few steps, as a section of results.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "results/field.h"

namespace firkin {

// What rank 0 was busy with, or stood still for.
inline constexpr const char* kComputeActivity = "compute";
inline constexpr const char* kCommunicationActivity = "communication";
inline constexpr const char* kForwardWaitActivity = "forward waits";  // strategy ordered: a module awaited its parameters
inline constexpr const char* kOptimizerActivity = "optimiser";

// A time of it, in seconds since the step began.
struct BusyPeriod {
  std::string activity;
  double start_s = 0;
  double end_s = 0;
};

// One rank's steps in seconds: samples, and their medians.
struct TraceFigures {
  std::vector<double> step_s = {}, compute_s = {}, communication_s = {}, overlapped_s = {};
};

// One setting of `firkin trace`.
struct TraceRow {
  std::string strategy;
  std::string name;  // "bucketed 4 MiB"
  std::optional<double> cap_mib = {};
  std::string file;                       // the Chrome trace
  std::optional<double> idle_share = {};  // of the last step's backward: the link idle though a bucket was ready
  std::vector<TraceFigures> ranks = {};
  std::vector<BusyPeriod> timeline = {};   // of the last step
  std::vector<BusyPeriod> predicted = {};  // the same plan as the model sees it; empty where nothing was predicted
};

// From when to when, wherever results.json states it.
inline constexpr const char* kStartKey = "start_s";
inline constexpr const char* kEndKey = "end_s";

nlohmann::json traces_json(const std::vector<TraceRow>& traces);
std::vector<TraceRow> read_traces(const std::vector<JsonFields>& rows);

// Rank 0's medians.
Table traces_table(const std::vector<TraceRow>& traces, Medium medium);

}  // namespace firkin
