// Results -> one HTML page that opens without a network, and their answer in words for it and for a terminal.
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

// ---- In words: firkin_words, for programs that make no page.

// A result in words, all plain text.
struct Wording {
  std::string kicker;                  // what was run, where and when
  std::string heading;                 // the answer, in one sentence
  std::string certainty;               // how sure it is, and what the measurement cannot tell; may be empty
  std::string own_engine;              // the best result of Firkin's own engine; empty if it was not measured
  bool recommends_own_engine = false;  // whether that engine is faster than the best cap
  std::vector<std::string> warnings;   // what limits it
  std::vector<PasteSetting> settings;  // what to do with it; the first is PyTorch's
  std::vector<std::string> lead;       // paragraphs: the reasons
  std::vector<std::string> notes;      // what was noticed on the way
};

Wording summarize(const Results& results);

// Fills in the answer of a tuning or a prediction, except for the kicker and the notes (recommendation.cpp).
void recommend(const Results& results, Wording& answer);

// Results for a terminal: tables of what was measured, and the answer of the page in words. For a tuning only its card
// and one table, or two if caps were compared.
std::string results_in_text(const Results& results);

// The answer alone. For a tuning it is a card: what to set, how certain that is, what to paste, and Firkin's own engine
// if that is faster.
std::string answer_in_text(const Results& results);

// One configuration of `firkin bench step`: two tables, or one line when it did not fit into memory.
std::string configuration_in_text(const StepConfiguration& configuration);

// ---- The page.

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
