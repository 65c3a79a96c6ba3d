// A comparison of two runs as JSON and as a table of 80 columns.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "report/comparison.h"

namespace firkin::cli {

nlohmann::json comparison_json(const Comparison& comparison);

// What is the same, what differs, the settings, and how to read it.
std::string comparison_text(const Comparison& comparison);

}  // namespace firkin::cli
