// The charts of a results.json as data: Vega-Lite specifications, computed by pure functions from templates.
//
// Colours are CSS variables of page.html ("var(--chart-measured)"), so one drawing serves light, dark and print.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "firkin/stats/estimates.h"
#include "results/results.h"

namespace firkin {

struct Chart {
  std::string id;       // the id of the page's element and the name of an image file: "curve"
  std::string title;    // plain text
  std::string caption;  // plain text: how to read it
  std::string summary;  // plain text: what it shows, for those who cannot see it
  nlohmann::json spec;  // Vega-Lite 6; width "container"; the data inside
};

// One chart or more for every section that `results` holds.
std::vector<Chart> charts_for(const Results& results);

// Times by bucket size (curve_charts.cpp): of a tuning, measured and predicted; and of `firkin predict`.
std::optional<Chart> curve_chart(const Results& results);
std::optional<Chart> predicted_chart(const Results& results);

// ---- Templates: the entries of charts.json, with data sets that code fills; "config" is the look that all share.
//
//   json spec = filled_chart("chunks", {{"chunks", rows}});  // rows: an array of objects with the fields that it draws
//   set_param(spec, "key", {"measured"});                    // a value that the template names among its "params"

// The file as it stands: the templates by their names ("allreduce", "chunks", ...), and "config".
const nlohmann::json& chart_templates();

// The template with `datasets` (name -> array of objects). Throws std::logic_error unless these match the template's.
nlohmann::json filled_chart(const std::string& name, nlohmann::json datasets);

// The chart of a template, whose name is its id, with the title and caption of its "usermeta".
Chart chart_of(const std::string& name, nlohmann::json datasets, std::string summary);

// Throws std::logic_error when the template has no such parameter.
void set_param(nlohmann::json& spec, const std::string& name, nlohmann::json value);

// Adds "low" and "high" (seconds) and "interval" (text; a dash without an interval or an upper end).
void add_interval(nlohmann::json& row, const std::optional<Interval>& interval);

}  // namespace firkin
