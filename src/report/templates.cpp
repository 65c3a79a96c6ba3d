// Templates of charts: loads charts.json and fills in data.
#include "report/charts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "results/field.h"

// The files that are embedded in the program as they are. This source is kept out of unity builds, so that only it is
// compiled again when one of them changes. From CMake: FIRKIN_REPORT_PAGE, the page without its results, that is
// template, style, script, Vega's JavaScript and its licences, made by assemble_report_page.py; FIRKIN_NOTICES,
// THIRD_PARTY_NOTICES; FIRKIN_CHARTS, charts.json, here ended by a zero.
#define FIRKIN_EMBEDDED(name, file) \
  ".global " name "_begin\n.global " name "_end\n" name "_begin:\n.incbin \"" file "\"\n" name "_end:\n.byte 0\n"

asm(".section .rodata\n" FIRKIN_EMBEDDED("firkin_report_page", FIRKIN_REPORT_PAGE) FIRKIN_EMBEDDED("firkin_notices", FIRKIN_NOTICES)
        FIRKIN_EMBEDDED("firkin_charts", FIRKIN_CHARTS) ".previous\n");

extern "C" const char firkin_charts_begin[];

namespace firkin {

using nlohmann::json;

namespace {

// Roles of colours. Blue, orange and green of the same order of lightness, which stay apart for colour-blind readers
// (Okabe and Ito, "Color universal design", 2008).
struct Role {
  const char* name;
  const char* light;
  const char* dark;
};

constexpr std::array kRoles = {
    Role{"ink", "#1d2733", "#e6ebf1"},     Role{"muted", "#5b6775", "#a3b0bf"},     Role{"grid", "#e3e8ee", "#2b3643"},
    Role{"surface", "#ffffff", "#161d26"}, Role{"predicted", "#0b6bb5", "#62b3f4"}, Role{"measured", "#c8500a", "#ff9a52"},
    Role{"gap", "#0a7f5f", "#3ecf9f"},     Role{"compute", "#9fb3c8", "#51657b"},
};

// Replaces every colour of the light page by the variable of its role.
json with_variables(json spec) {
  if (spec.is_structured()) {
    for (auto& child : spec) child = with_variables(std::move(child));
  } else if (spec.is_string()) {
    for (const Role& role : kRoles) {
      if (spec == role.light) return fmt::format("var(--chart-{})", role.name);
    }
  }
  return spec;
}

// Whether a layer would draw nothing: there are no rows, or none has a field that the layer takes from them directly.
bool is_empty(const json& layer, const json& rows) {
  if (rows.empty()) return true;
  if (layer.contains("transform") || !layer.contains("encoding")) return false;
  for (const auto& [channel, encoding] : layer["encoding"].items()) {
    const bool is_position = channel.starts_with('x') || channel.starts_with('y');
    if (!is_position || !encoding.contains("field")) continue;
    const std::string field = encoding["field"];
    if (std::ranges::none_of(rows, [&field](const json& row) { return row.contains(field); })) return true;
  }
  return false;
}

// Removes layers that have nothing to draw, because Vega warns of their infinite extent. `data`: the name of the data
// set that the layers of `spec` inherit.
void leave_out_empty_layers(json& spec, const json& datasets, const std::string& data) {
  if (!spec.contains("layer")) return;
  json layers = json::array();
  for (json& layer : spec["layer"]) {
    const std::string name = layer.contains("data") ? layer["data"]["name"].get<std::string>() : data;
    if (is_empty(layer, datasets.at(name))) continue;
    leave_out_empty_layers(layer, datasets, name);
    layers.push_back(std::move(layer));
  }
  spec["layer"] = std::move(layers);
}

}  // namespace

const json& chart_templates() {
  static const json kTemplates = json::parse(firkin_charts_begin);
  return kTemplates;
}

std::string colour_declarations(Scheme scheme) {
  std::string css;
  for (const Role& role : kRoles) css += fmt::format("--chart-{}:{};", role.name, scheme == Scheme::kLight ? role.light : role.dark);
  return css;
}

json filled_chart(const std::string& name, json datasets) {
  json spec = chart_templates().at(name);
  const json expected = std::exchange(spec["datasets"], json::object());
  spec.erase("usermeta");
  spec["width"] = "container";
  spec["autosize"] = {{"type", "fit-x"}, {"contains", "padding"}};  // marks beside the plot make it narrower
  spec["padding"] = {{"left", 2}, {"top", 2}, {"right", 6}, {"bottom", 2}};
  spec["config"] = chart_templates()["config"];
  spec = with_variables(std::move(spec));
  for (const auto& [dataset, rows] : datasets.items()) {
    if (!expected.contains(dataset)) throw std::logic_error(fmt::format("chart {}: no data set '{}'", name, dataset));
  }
  if (datasets.size() != expected.size()) throw std::logic_error(fmt::format("chart {}: a data set would be left empty", name));
  leave_out_empty_layers(spec, datasets, spec.contains("data") ? spec["data"]["name"].get<std::string>() : "");
  spec["datasets"] = std::move(datasets);
  return spec;
}

Chart chart_of(const std::string& name, json datasets, std::string summary) {
  const json& words = chart_templates().at(name)["usermeta"];
  return {name, words["title"], words["caption"], std::move(summary), filled_chart(name, std::move(datasets))};
}

void set_param(json& spec, const std::string& name, json value) {
  const auto param = std::ranges::find_if(spec["params"], [&name](const json& one) { return one["name"] == name; });
  if (param == spec["params"].end()) throw std::logic_error(fmt::format("a chart without the parameter '{}'", name));
  (*param)["value"] = std::move(value);
}

void add_interval(json& row, const std::optional<Interval>& interval) {
  row["interval"] = "–";
  if (!interval || !std::isfinite(interval->high)) return;  // too few samples for an upper end
  row["low"] = interval->low;
  row["high"] = interval->high;
  row["interval"] = fmt::format("{} to {}", display_seconds(interval->low), display_seconds(interval->high));
}

}  // namespace firkin
