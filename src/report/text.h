// Results for a terminal.
#pragma once

#include <string>

#include "results/results.h"

namespace firkin {

// The tables of all that was measured, and the answer in words. The same words as on the page.
// Of a tuning the answer comes first, as a card, and then its table. with_settings: what to paste into every framework, too.
std::string results_in_text(const Results& results, bool with_settings = false);

// The answer alone: its sentences, the setting to paste, and the notes.
std::string answer_in_text(const Results& results, bool with_settings = false);

// One configuration of `firkin bench step`: two tables, or one line when it did not fit into memory.
std::string configuration_in_text(const StepConfiguration& configuration);

}  // namespace firkin
