// What the results.json of several subcommands have in common.
#pragma once

#include <nlohmann/json.hpp>

#include "command.h"
#include "firkin/stats/interval.h"

namespace firkin::cli {

// {"schema", "command", "command_line", "started", "seed"}: the head of a results.json. `started` is now, UTC.
nlohmann::json results_head(const std::string& command, uint64_t seed);

// The machine and the versions; with LibTorch in the program also its version and the threads in use.
nlohmann::json environment(int world_size, const std::string& backend);

// {"low", "high"}, in the unit of the interval.
nlohmann::json interval_json(const Interval& interval);

}  // namespace firkin::cli
