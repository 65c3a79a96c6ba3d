// Several results on one page: their names, and the charts in which they stand together.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "report/charts.h"
#include "results/results.h"

namespace firkin {

// What tells results apart by where they lie: the folder of a results.json, the name of any other file; as much of the path as it takes.
// {"a/results.json", "b/results.json"} -> {"a", "b"}; {"a/out/results.json", "b/out/results.json"} -> {"a/out", "b/out"}. Of a file that is
// named twice, the second gets a number.
std::vector<std::string> names_by_place(const std::vector<std::filesystem::path>& files);

// [losses, speeds] The trainings among several results, each under its name; none where there are fewer than two.
std::vector<Chart> shared_charts(const std::vector<Results>& several, const std::vector<std::string>& names);

}  // namespace firkin
