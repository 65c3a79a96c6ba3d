// Times of all-reduces by size, as a section of results.json.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/allreduce_table.h"
#include "firkin/plan/cost_curve.h"
#include "results/field.h"

namespace firkin {

// Every sample of `firkin bench allreduce`, size by size, in the order measured. Seconds per call.
struct AllReduceSamples {
  std::vector<int64_t> bytes = {};
  std::vector<std::vector<double>> isolated_s = {};
  std::vector<std::vector<double>> gap_s = {};
  std::vector<double> mixed_queue_ratios = {};
};

// Queues of calls of mixed sizes, measured over what a(x) and g(x) say.
struct MixedQueuesSection {
  int64_t queues = 0;
  double ratio = 0;  // median
  std::optional<Interval> ratio_ci = {};
};

// Of a fit, wherever results.json states one.
inline constexpr const char* kAlphaBetaKey = "alpha_beta";
inline constexpr const char* kMedianErrorKey = "median_relative_error";

nlohmann::json allreduce_json(const AllReduceTable& table);
AllReduceTable read_allreduce(const std::vector<JsonFields>& rows);  // by world size, then size

nlohmann::json alpha_beta_json(const AlphaBeta& fit);
AlphaBeta read_alpha_beta(const JsonFields& fields);

nlohmann::json samples_json(const AllReduceSamples& samples);
AllReduceSamples read_allreduce_samples(const JsonFields& fields);

MixedQueuesSection mixed_queues_section(const std::vector<double>& ratios);  // at least one
nlohmann::json mixed_queues_json(const MixedQueuesSection& queues);
MixedQueuesSection read_mixed_queues(const JsonFields& fields);
std::string mixed_queues_note(const MixedQueuesSection& queues);  // for Results::notes

Table allreduce_table(const AllReduceTable& table, Medium medium);

}  // namespace firkin
