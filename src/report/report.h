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

#include "results/results.h"

namespace firkin {

// A result in words, all plain text.
struct Answer {
  std::string kicker;                  // what was run, where and when
  std::string heading;                 // the answer, in one sentence
  std::string certainty;               // how sure it is, and what the measurement cannot tell; may be empty
  std::string own_engine;              // the best that Firkin's own engine did; empty where it was not measured
  bool recommends_own_engine = false;  // it is faster than the best cap
  std::vector<std::string> warnings;   // what limits it
  std::vector<PasteSetting> settings;  // what to do with it; the first is PyTorch's
  std::vector<std::string> lead;       // paragraphs: the reasons
  std::vector<std::string> notes;      // what was noticed on the way
};

Answer summarize(const Results& results);

// Fills in the answer of a tuning or a prediction, except for the kicker and the notes (recommendation.cpp).
void recommend(const Results& results, Answer& answer);

// The page for the results of any subcommand; what a subcommand did not measure is left out. Strings in `results` may
// hold anything. Thread-safe.
std::string render_report(const Results& results);

// One page for several results, in the order given, under their names (one for each result): the answer, charts and
// tables of each. A single result gets the page above.
std::string render_reports(const std::vector<Results>& several, const std::vector<std::string>& names);

// Short names that tell results apart by where they lie: the folder of a results.json, the name of any other file; as
// much of the path as it takes. {"a/results.json", "b/results.json"} -> {"a", "b"}; {"a/out/results.json",
// "b/out/results.json"} -> {"a/out", "b/out"}. If a file is named twice, the second gets a number.
std::vector<std::string> names_by_place(const std::vector<std::filesystem::path>& files);

// A further file of the folder, beside results.json and report.html.
struct OutputFile {
  std::string name;
  std::string content;
};

// `results` with the names of all files that write_result() writes.
Results with_files(Results results, const std::vector<OutputFile>& files);

// results: with_files(). Every file is whole or not there. Throws RuntimeError when the disk does not take them.
void write_result(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files);

// Results for a terminal: the tables of all that was measured, and the answer in words, the same as on the page. After a tuning only what
// helps to act: its card, and one table; with caps that were to be compared, theirs too. with_settings: what to paste into every framework.
std::string results_in_text(const Results& results, bool with_settings = false);

// The answer alone. After a tuning its card: what to set, how sure that is, what to paste, and Firkin's own engine if that is faster.
std::string answer_in_text(const Results& results, bool with_settings = false);

// One configuration of `firkin bench step`: two tables, or one line when it did not fit into memory.
std::string configuration_in_text(const StepConfiguration& configuration);

// THIRD_PARTY_NOTICES: the licences of third-party code in the program.
std::string_view third_party_notices();

}  // namespace firkin
