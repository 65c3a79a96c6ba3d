// Charts are templates, the entries of charts.json: Vega-Lite specifications with example rows, each of which draws as it stands
// (tools/render_charts.py charts.json png FOLDER). Code puts rows in the place of the examples:
//
//   json spec = filled_chart("chunks", {{"chunks", rows}});  // rows: an array of objects, with the fields of the examples
//   set_param(spec, "key", {"measured"});                    // a value that the template names among its "params"
//
// "config" is the look that all share. Templates have the colours of the light page; what is filled has the CSS variable of the same role
// ("var(--chart-measured)"), so that one drawing serves light, dark and print.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "firkin/stats/interval.h"

namespace firkin {

// The names of all templates: "allreduce", "chunks", ...
std::vector<std::string> chart_template_names();

// The template as it stands in the file. Throws nlohmann's out_of_range when there is none of this name.
nlohmann::json chart_template(const std::string& name);

// The page's specification: the template with `datasets` (name -> array of objects), without the layers that would have nothing to draw.
// Throws std::logic_error unless the data sets are exactly those of the template.
nlohmann::json filled_chart(const std::string& name, nlohmann::json datasets);

// Throws std::logic_error when the template has no such parameter.
void set_param(nlohmann::json& spec, const std::string& name, nlohmann::json value);

// Adds "low" and "high" (seconds) and "interval" (text), which is a dash when there is none.
void add_interval(nlohmann::json& row, const std::optional<Interval>& interval);

// CSS declarations of the charts' colours by role, on a light and on a dark page: "--chart-ink:#1d2733;...".
enum class Scheme { kLight, kDark };
std::string colour_declarations(Scheme scheme);

}  // namespace firkin
