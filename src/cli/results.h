// What every results.json says about where and how it was made.
#pragma once

#include <nlohmann/json.hpp>

#include "command.h"

namespace firkin::cli {

// {"schema", "command", "command_line", "started", "seed"}: the head of a results.json. `started` is now, UTC.
nlohmann::json results_head(const std::string& command, uint64_t seed);

// The machine and the versions; with LibTorch in the program also its version and the threads in use.
nlohmann::json environment(int world_size, const std::string& backend);

}  // namespace firkin::cli
