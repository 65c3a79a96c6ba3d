// The answer in words: heading, lead, key figures.
#pragma once

#include <string>
#include <vector>

#include "results/paste_settings.h"
#include "results/results.h"

namespace firkin {

struct KeyFigure {
  std::string label;
  std::string value;
  std::string note;
};

// All plain text.
struct Answer {
  std::string title;              // of the browser's tab
  std::string kicker;             // what was run, where and when
  std::string heading;            // one sentence
  std::vector<std::string> lead;  // paragraphs
  std::vector<KeyFigure> figures;
  std::vector<PasteSetting> settings;  // what to do with it
};

Answer put_in_words(const Results& results);

// Parts of it for `firkin tune`. results.answer must be there.
std::string tune_heading(const Results& results);
std::vector<std::string> tune_lead(const Results& results);
std::vector<KeyFigure> tune_figures(const Results& results);
std::vector<PasteSetting> tune_settings(const Results& results);

// And for `firkin predict`.
std::string prediction_heading(const Prediction& prediction);
std::vector<std::string> prediction_lead(const Prediction& prediction);
std::vector<KeyFigure> prediction_figures(const Prediction& prediction);
std::vector<PasteSetting> prediction_settings(const Prediction& prediction);

}  // namespace firkin
