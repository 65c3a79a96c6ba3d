// The answer in words: heading, lead, key figures.
#pragma once

#include <string>
#include <vector>

#include "results.h"

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
};

Answer put_in_words(const Results& results);

}  // namespace firkin
