// Times of all-reduces by size, as a section of results.json.
#pragma once

#include <optional>
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

Table allreduce_table(const AllReduceTable& table, Medium medium);

}  // namespace firkin
