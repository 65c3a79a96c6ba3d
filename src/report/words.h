// Results in words, for a page and for a terminal. A library of its own, firkin_words, for programs that make no page.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "measuring/tuning.h"
#include "results/results.h"

namespace firkin {

// What intervals of a predicted step have held, printed beside them. A test compares it with the kept study
// (docs/validation.md).
inline constexpr std::string_view kRangeHeld =
    "Such intervals held 95 % of caps in two earlier studies, 78 % in the next, whose machine changed its speed meanwhile, and 96 % in the "
    "newest (96 % where the machine kept its speed).";

// Printed where a gain is likely. A test compares it with the kept studies (studies/validation/certainty.py).
inline constexpr std::string_view kGainHeld = "Of 36 gains measured on CPUs such ranges held 24, and 14 of 16 caps called likely gained.";

// A result in words, all plain text.
struct Wording {
  std::string kicker;                  // what was run, where and when
  std::string heading;                 // the answer, in one sentence
  std::string certainty;               // how sure it is, and what the measurement cannot tell; may be empty
  std::string next_step;               // what would change the answer, or help more; may be empty
  std::string own_engine;              // the best result of Firkin's own engine; empty if it was not measured
  bool recommends_own_engine = false;  // whether that engine is faster than the best cap
  std::vector<std::string> warnings;   // what limits it
  std::vector<PasteSetting> settings;  // what to do with it; the first is PyTorch's
  std::vector<std::string> lead;       // paragraphs: the reasons
  std::vector<std::string> notes;      // what was noticed on the way
};

// What a tuning is doing: "racing the best caps".
std::string_view words_of(TuningPhase phase);

// The notes of a tuning, and the doubts about a prediction's inputs: one sentence each.
std::vector<std::string> notes_of(const Tuning& tuning);
std::vector<std::string> notes_of(const Prediction& prediction);

// All of `results` in words. Thread-safe.
Wording summarize(const Results& results);

// Fills in the answer of a tuning or a prediction, except for the kicker and the notes (recommendation.cpp).
void recommend(const Results& results, Wording& answer);

// Results for a terminal: tables of what was measured, and the answer of the page in words. For a tuning only its card
// and one table, or two if caps were compared.
std::string results_in_text(const Results& results);

// The answer alone. For a tuning it is a card: what to set, how certain that is, what to paste, Firkin's own engine if
// that is faster, and what to do next.
std::string answer_in_text(const Results& results);

// One configuration of `firkin bench step`: two tables, or one line when it did not fit into memory.
std::string configuration_in_text(const StepConfiguration& configuration);

}  // namespace firkin
