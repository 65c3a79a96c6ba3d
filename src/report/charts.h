// The charts of a results.json as data: Vega-Lite specifications, computed by pure functions.
//
//   for (const Chart& chart : charts_for(results)) write_file_atomically(chart.id + ".vl.json", standalone_spec(chart).dump());
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

// The specification for an image file: title, a fixed width, a background, and the light palette's colours in place of CSS variables.
nlohmann::json standalone_spec(const Chart& chart);

}  // namespace firkin
