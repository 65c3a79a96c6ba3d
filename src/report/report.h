// results.json -> one HTML page that opens without a network.
//
//   write_file_atomically("report.html", render_report(read_results_json("results.json")));
//
// The page holds everything: style, Vega's JavaScript, charts, tables, and the results themselves as a data island
// (<script type="application/json" id="results">), from which they can be downloaded again.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace firkin {

// The page for the results of any subcommand; what a subcommand did not measure is left out. Strings in `results` may hold anything.
// Throws InputError naming the field ("results: curve[2].measured_s: missing; expected a positive number") when a section is malformed, or
// when `command` is "tune" and a section of its answer is absent. Thread-safe.
std::string render_report(const nlohmann::json& results);

// The document of a results.json, of which render_report() accepts every section. Throws InputError, with file and line, when it is no
// JSON, repeats a key, or a section is malformed. `file`: the name that errors carry.
nlohmann::json parse_results_json(std::string_view text, const std::string& file);
nlohmann::json read_results_json(const std::filesystem::path& path);

}  // namespace firkin
