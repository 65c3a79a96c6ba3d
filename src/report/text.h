// Results for a terminal of 80 columns.
#pragma once

#include <string>

#include "results/results.h"

namespace firkin {

// The tables of all that was measured, and the answer in words. The same words as on the page.
std::string results_in_text(const Results& results);

// The answer alone: its sentences, settings to paste, and the notes.
std::string answer_in_text(const Results& results);

// One configuration of `firkin bench step`: two tables, or one line when it did not fit into memory.
std::string configuration_in_text(const StepConfiguration& configuration);

}  // namespace firkin
