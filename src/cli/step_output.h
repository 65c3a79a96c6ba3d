// The result of `firkin bench step` for a script, a spreadsheet and a person.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/step_bench.h"
#include "bench/step_memory.h"
#include "step_matrix.h"

namespace firkin::cli {

// The element of `configurations` that a measured configuration becomes; docs/results.md describes it. `memory`: one per cell.
nlohmann::json measured_json(const Configuration& configuration, const std::vector<Cell>& cells, const StepBenchResult& result,
                             const std::vector<StepMemory>& memory, int world_size, uint64_t seed);

// Two tables, 80 columns wide, of such an element; one line when it did not fit.
std::string configuration_table(const nlohmann::json& configuration);

// All cells of all configurations, one line each: steps.csv.
std::string steps_csv(const nlohmann::json& configurations);

}  // namespace firkin::cli
