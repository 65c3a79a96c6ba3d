// A comparison of two runs, as a section of results.json and as tables.
#pragma once

#include <string>
#include <vector>

#include "results/comparison.h"

namespace firkin {

nlohmann::json comparison_json(const Comparison& comparison);
Comparison read_comparison(const JsonFields& fields);  // without raw samples

// The settings alone, configuration by configuration.
std::vector<Comparison> by_configuration(const Comparison& comparison);

// One row per setting, all of one configuration: both medians, their ratio and what it says.
Table comparison_table(const Comparison& comparison, Medium medium);

// The two files, and the facts in which the runs differ.
Table difference_table(const Comparison& comparison);

// How the intervals came about and what they leave open, a paragraph each.
std::vector<std::string> reading_aid(const Comparison& comparison);

}  // namespace firkin
