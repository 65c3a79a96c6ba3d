// A result in words: heading, how sure it is, settings to paste.
#pragma once

#include <string>
#include <vector>

#include "results/results.h"

namespace firkin {

// All plain text.
struct Answer {
  std::string kicker;                  // what was run, where and when
  std::string heading;                 // the answer, in one sentence
  std::string certainty;               // how sure it is, and what the measurement cannot tell; may be empty
  std::string own_engine;              // the best that Firkin's own engine did; empty where it was not measured
  std::vector<std::string> warnings;   // what limits it
  std::vector<PasteSetting> settings;  // what to do with it; the first is PyTorch's
  std::vector<std::string> lead;       // paragraphs: the reasons
  std::vector<std::string> notes;      // what was noticed on the way
};

Answer put_in_words(const Results& results);

// Of a tuning or a prediction, all but the kicker and the notes (recommendation.cpp).
void recommend(const Results& results, Answer& answer);

}  // namespace firkin
