// The charts of a results.json as data: Vega-Lite specifications, computed by pure functions.
//
// Colours in a specification are the page's CSS variables ("var(--chart-measured)"), so that one drawing serves light, dark and print.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "results/results.h"

namespace firkin {

struct Chart {
  std::string id;       // of the page's element, and name of an image file: "curve"
  std::string title;    // plain text
  std::string caption;  // plain text: how to read it
  std::string summary;  // plain text: what it shows, for those who cannot see it
  nlohmann::json spec;  // Vega-Lite 6; width "container"; the data inside
};

// Charts for all that `results` holds. Sections that are absent give no chart.
std::vector<Chart> charts_for(const Results& results);

// Losses and tokens per second of trainings, each under its name; nothing where there are none.
struct NamedTraining {
  std::string name;
  const TrainingSection* training;
};
std::vector<Chart> training_charts(const std::vector<NamedTraining>& trainings);

// The rows of the strategies' chart and table: as measured, and the best measured cap as one more when the results name it.
std::vector<StrategyRow> compared_strategies(const Results& results);

}  // namespace firkin
