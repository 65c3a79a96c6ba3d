// Results -> one HTML page that opens without a network.
//
//   write_file_atomically("report.html", render_report(read_results("results.json")));
//
// The page holds everything: style, Vega's JavaScript, charts, tables, and the results themselves as a data island
// (<script type="application/json" id="results">), from which they can be downloaded again.
#pragma once

#include <string>
#include <vector>

#include "results/results.h"

namespace firkin {

// The page for the results of any subcommand; what a subcommand did not measure is left out. Strings in `results` may hold anything.
// Thread-safe.
std::string render_report(const Results& results);

// One page for several results, in the order given: charts and a table in which trainings stand together, under their names (one for each
// result, shared_charts.h), and the answer, charts and tables of each. Of one, the page above.
std::string render_reports(const std::vector<Results>& several, const std::vector<std::string>& names);

}  // namespace firkin
