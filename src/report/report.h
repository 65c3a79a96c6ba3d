// Results -> one HTML page that opens without a network.
//
//   write_file_atomically("report.html", render_report(read_results("results.json")));
//
// The page holds everything: style, Vega's JavaScript, charts, tables, and the results themselves as a data island
// (<script type="application/json" id="results">), from which they can be downloaded again.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "report/words.h"
#include "results/results.h"

namespace firkin {

// The page for the results of any subcommand, with the sections that it measured. Strings in `results` may hold
// anything. Thread-safe.
std::string render_report(const Results& results);

// `results` with the names of all files that write_result() writes.
Results with_files(Results results, const std::vector<OutputFile>& files);

// Writes what write_files() writes, and the page. results: from with_files().
void write_result(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files);

// THIRD_PARTY_NOTICES: the licences of third-party code in the program.
std::string_view third_party_notices();

}  // namespace firkin
