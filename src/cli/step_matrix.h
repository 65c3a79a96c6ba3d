// The matrix that `firkin bench step` measures: models x batches x sequences, and strategies x caps for each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/step_bench.h"
#include "command.h"
#include "language_model_job.h"
#include "rank_flags.h"
#include "results/steps.h"
#include "rule_flags.h"

namespace firkin::cli {

struct StepFlags {
  CommonFlags common;
  RankFlags ranks;
  JobFlags job;  // what all configurations share
  RuleFlags rule;
  std::vector<std::string> models = {"demo"};
  std::vector<int64_t> batch_sizes = {2, 4};
  std::vector<int64_t> sequence_lengths = {128, 256, 512};
  std::vector<std::string> strategies = {"none", "naive", "flat", "overlap", "bucketed", "torch"};
  std::vector<double> caps_mib = {1, 10, 100, 1000};
  int64_t synthetic_tensors = 0;  // instead of models, when positive
  int64_t synthetic_bytes = 10240;
  int blocks = 20;
  int warmup = 1;
  int steps = 2;
  bool resume = false;
};

// --strategies, with the names that it takes, and --cap-mib.
void add_strategy_flags(CLI::App& app, std::vector<std::string>& strategies, std::vector<double>& caps_mib);

// One line of a configuration's table.
struct Cell {
  std::string strategy;
  std::optional<double> cap_mib;
  StepSetting setting;
};

// One per strategy, or per strategy and cap where a strategy takes caps. Throws InputError.
std::vector<Cell> make_cells(const std::vector<std::string>& strategies, const std::vector<double>& caps_mib, const RuleFlags& rule);

// Those of the flags. `none` is always there, and first: the others are compared with it. Throws InputError.
std::vector<Cell> make_cells(const StepFlags& flags);

// What is trained: by itself one row of the matrix.
struct Configuration {
  std::optional<JobFlags> job;  // none: the synthetic tensors
  ModelDescription description;
};

// In the order in which they are measured. Checks each. Throws InputError.
std::vector<Configuration> make_configurations(const StepFlags& flags);

// The configurations that an earlier, interrupted run with the same settings left in --out; none when there is no results.json.
// Throws InputError when that is no result of bench step, or was measured with other settings, on another machine or by another version.
std::vector<StepConfiguration> resumable_configurations(const StepFlags& flags);

}  // namespace firkin::cli
