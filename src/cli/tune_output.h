// The result of `firkin tune` for a script and for a person.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/tuner.h"

namespace firkin::cli {

// The fields of results.json that tune adds; docs/results.md describes them.
nlohmann::json tune_json(const TuneResult& result);

// The rows of the table, as in allreduce.csv.
nlohmann::json allreduce_json(const AllReduceTable& table);

// Tables of caps and strategies and the answer in words, 80 columns wide.
std::string tune_table(const TuneResult& result);

}  // namespace firkin::cli
