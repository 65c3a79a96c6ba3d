#include "chart_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "palette.h"
#include "results/numbers.h"

// Every template, charts/NAME.vl.json.
#define FIRKIN_TEMPLATES(X) \
  X(allreduce)              \
  X(chunks) X(curve) X(heat_map) X(layers) X(loss) X(losses) X(pace) X(ratios) X(ready) X(speeds) X(step_matrix) X(strategies) X(timeline)

// The assembler includes the file as it is, ended by a zero. FIRKIN_CHARTS: the folder, from CMake.
#define FIRKIN_CHART_FILE(symbol, file)                                                                              \
  asm(".section .rodata\n.global firkin_chart_" #symbol "\nfirkin_chart_" #symbol ":\n.incbin \"" FIRKIN_CHARTS file \
      "\"\n.byte 0\n.previous\n");                                                                                   \
  extern "C" const char firkin_chart_##symbol[];
#define FIRKIN_TEMPLATE_FILE(name) FIRKIN_CHART_FILE(name, "/" #name ".vl.json")
FIRKIN_TEMPLATES(FIRKIN_TEMPLATE_FILE)
FIRKIN_CHART_FILE(config, "/config.json")

namespace firkin {

using nlohmann::json;

namespace {

#define FIRKIN_TEMPLATE_NAME(name) {#name, firkin_chart_##name},
const std::map<std::string, const char*> kTemplates = {FIRKIN_TEMPLATES(FIRKIN_TEMPLATE_NAME)};

bool has_field(const json& rows, const std::string& field) {
  return std::ranges::any_of(rows, [&field](const json& row) { return row.contains(field); });
}

// Whether there is nothing to draw: no rows, or none with a field that a layer takes from them as they are.
bool is_empty(const json& layer, const json& rows) {
  if (rows.empty()) return true;
  if (layer.contains("transform") || !layer.contains("encoding")) return false;
  for (const auto& [channel, encoding] : layer["encoding"].items()) {
    const bool is_position = channel.starts_with('x') || channel.starts_with('y');
    if (is_position && encoding.contains("field") && !has_field(rows, encoding["field"])) return true;
  }
  return false;
}

// Vega warns of the infinite extent of what is not there. `data`: the name of the data set that the layers of `spec` inherit.
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

std::vector<std::string> chart_template_names() {
  std::vector<std::string> names;
  for (const auto& [name, text] : kTemplates) names.push_back(name);
  return names;
}

json chart_template(const std::string& name) {
  return json::parse(kTemplates.at(name));
}

json filled_chart(const std::string& name, json datasets) {
  json spec = chart_template(name);
  const json examples = std::exchange(spec["datasets"], json::object());
  spec["width"] = "container";
  spec["autosize"] = {{"type", "fit-x"}, {"contains", "padding"}};  // marks beside the plot make it narrower
  spec["padding"] = {{"left", 2}, {"top", 2}, {"right", 6}, {"bottom", 2}};
  spec["config"] = json::parse(firkin_chart_config);
  spec = with_page_colours(std::move(spec));
  for (const auto& [dataset, rows] : datasets.items()) {
    if (!examples.contains(dataset)) throw std::logic_error(fmt::format("chart {}: no data set '{}'", name, dataset));
  }
  if (datasets.size() != examples.size()) throw std::logic_error(fmt::format("chart {}: a data set would be left empty", name));
  leave_out_empty_layers(spec, datasets, spec.contains("data") ? spec["data"]["name"].get<std::string>() : "");
  spec["datasets"] = std::move(datasets);
  return spec;
}

void set_param(json& spec, const std::string& name, json value) {
  for (json& param : spec["params"]) {
    if (param["name"] != name) continue;
    param["value"] = std::move(value);
    return;
  }
  throw std::logic_error(fmt::format("a chart without the parameter '{}'", name));
}

void add_interval(json& row, const std::optional<Interval>& interval) {
  row["interval"] = "–";
  if (!interval) return;
  row["low"] = interval->low;
  row["high"] = interval->high;
  row["interval"] = fmt::format("{} to {}", display_seconds(interval->low), display_seconds(interval->high));
}

}  // namespace firkin
