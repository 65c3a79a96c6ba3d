// Charts are templates, charts/NAME.vl.json: Vega-Lite files with example rows, which open in Vega's online editor as they are. Code puts
// rows in the place of the examples, and the shared look in the place of the editor's:
//
//   json spec = filled_chart("chunks", {{"chunks", rows}});  // rows: an array of objects, with the fields of the examples
//   set_param(spec, "key", {"measured"});                    // a value that the template names among its "params"
//
// charts/config.json is the shared look; pasted into the editor's tab "Config" it shows there, too. A template's colours are those of the
// light palette (palette.h); a page's specification has the CSS variable of the same role instead.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "firkin/stats/interval.h"

namespace firkin {

// The names of all templates: "allreduce", "chunks", ...
std::vector<std::string> chart_template_names();

// The template as it stands in its file. Throws std::out_of_range when there is none of this name.
nlohmann::json chart_template(const std::string& name);

// The page's specification: the template with `datasets` (name -> array of objects), without the layers that would have nothing to draw.
// Throws std::logic_error unless the data sets are exactly those of the template.
nlohmann::json filled_chart(const std::string& name, nlohmann::json datasets);

// Throws std::logic_error when the template has no such parameter.
void set_param(nlohmann::json& spec, const std::string& name, nlohmann::json value);

// Adds "low" and "high" (seconds) and "interval" (text), which is a dash when there is none.
void add_interval(nlohmann::json& row, const std::optional<Interval>& interval);

}  // namespace firkin
