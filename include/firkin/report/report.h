// results.json -> one HTML page that opens without a network.
//
//   write_file_atomically("report.html", render_report(nlohmann::json::parse(read_file("results.json"))));
//
// The page holds everything: style, Vega's JavaScript, charts, tables, and the results themselves as a data island
// (<script type="application/json" id="results">), from which they can be downloaded again.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace firkin {

// The page for the results of any subcommand; what a subcommand did not measure is left out. Strings in `results` may hold anything.
// Throws InputError naming the field ("results: curve[2].measured_s: missing; expected a positive number") when a section is malformed, or
// when `command` is "tune" and a section of its answer is absent. Thread-safe.
std::string render_report(const nlohmann::json& results);

}  // namespace firkin
