// Heat maps: one cell per factor of an input, darker for more.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_parts.h"
#include "firkin/base/units.h"
#include "palette.h"
#include "report/sensitivity_page.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kMapRowHeight = 44;
// Opacity of the least and the greatest value. Beyond this, text on it has less than 4.5 times its contrast (WCAG 2, AA) in one scheme.
constexpr double kFaintest = 0.06, kStrongest = 0.55;

struct Cell {
  std::string column;
  std::string row;
  double shade = 0;  // any scale
  std::string label;
  const SensitivityPoint* point = nullptr;
};

struct HeatMap {
  std::string column_title, row_title;
  std::vector<Cell> cells;
};

// 0.125 -> "1/8", 4 -> "4"
std::string factor_label(double factor) {
  return factor < 1 ? fmt::format("1/{:g}", 1 / factor) : fmt::format("{:g}", factor);
}

double regret(const SensitivityPoint& point) {
  return std::max(0.0, point.kept_backward_s / point.backward_s - 1);
}

json cell_rows(const std::vector<Cell>& cells) {
  const auto [least, most] = std::ranges::minmax_element(cells, {}, &Cell::shade);
  const double range = most->shade - least->shade;
  json rows = json::array();
  for (const Cell& cell : cells) {
    const double strength = range > 0 ? (cell.shade - least->shade) / range : 0;
    rows.push_back({{"column", cell.column},
                    {"row", cell.row},
                    {"opacity", kFaintest + (kStrongest - kFaintest) * strength},
                    {"label", cell.label},
                    {"cap", display_cap(mib(cell.point->cap_bytes)) + " MiB"},
                    {"time", display_seconds(cell.point->backward_s)},
                    {"exposed", display_seconds(cell.point->exposed_s)},
                    {"keep", display_percent(regret(*cell.point), true)}});
  }
  return rows;
}

// Distinct values in the order in which they appear.
json in_order(const std::vector<Cell>& cells, std::string Cell::*name) {
  json names = json::array();
  for (const Cell& cell : cells) {
    if (std::find(names.begin(), names.end(), cell.*name) == names.end()) names.push_back(cell.*name);
  }
  return names;
}

json axis_channel(const char* field, const json& order, const std::string& title) {
  const json axis = {{"title", title.empty() ? json() : json(title)},
                     {"domain", false},
                     {"ticks", false},
                     {"labelAngle", 0},
                     {"labelPadding", 6},
                     {"labelOverlap", false},
                     {"grid", false},
                     {"labelColor", chart_colour("ink")},
                     {"orient", std::string(field) == "column" ? "top" : "left"}};
  return {{"field", field}, {"type", "ordinal"}, {"sort", order}, {"scale", {{"paddingInner", 0.04}, {"paddingOuter", 0}}}, {"axis", axis}};
}

Chart heat_map(std::string id, std::string title, std::string caption, std::string summary, const HeatMap& map) {
  const json rows = in_order(map.cells, &Cell::row);
  const json x = axis_channel("column", in_order(map.cells, &Cell::column), map.column_title);
  const json y = axis_channel("row", rows, map.row_title);
  const std::vector<std::pair<const char*, std::string>> shown = {{"row", map.row_title.empty() ? "input" : map.row_title},
                                                                  {"column", map.column_title},
                                                                  {"cap", "best cap"},
                                                                  {"time", "backward"},
                                                                  {"exposed", "exposed"},
                                                                  {"keep", "keeping today's cap"}};
  json tooltip = json::array();
  for (const auto& [field, name] : shown) tooltip.push_back({{"field", field}, {"title", name}});
  Chart chart = {std::move(id), std::move(title), std::move(caption), std::move(summary),
                 chart_frame(kMapRowHeight * static_cast<int>(rows.size()), 1)};
  chart.spec["data"] = inline_data(cell_rows(map.cells));
  chart.spec["layer"] = {
      {{"mark", {{"type", "rect"}, {"cornerRadius", 3}, {"color", chart_colour("predicted")}}},
       {"encoding",
        {{"x", x},
         {"y", y},
         {"tooltip", tooltip},
         {"opacity", {{"field", "opacity"}, {"type", "quantitative"}, {"scale", nullptr}, {"legend", nullptr}}}}}},
      {{"mark", {{"type", "text"}}},
       {"encoding",
        {{"x", x}, {"y", y}, {"tooltip", tooltip}, {"text", {{"field", "label"}}}, {"color", {{"value", chart_colour("ink")}}}}}}};
  return chart;
}

// Each input by factor.
HeatMap by_influence(const SensitivityReport& report) {
  HeatMap map = {"times its value", "", {}};
  for (const SensitivityPoint& point : report.points) {
    map.cells.push_back({factor_label(point.factor), name_of(point.influence), 0, "", &point});
  }
  return map;
}

HeatMap latency_by_bandwidth(const SensitivityReport& report) {
  HeatMap map = {"bandwidth, times its value", "latency, times its value", {}};
  const std::vector<double>& factors = report.map.factors;
  for (size_t i = 0; i < report.map.cells.size(); ++i) {
    map.cells.push_back(
        {factor_label(factors[i % factors.size()]), factor_label(factors[i / factors.size()]), 0, "", &report.map.cells[i]});
  }
  return map;
}

void show_time(HeatMap& map) {
  for (Cell& cell : map.cells) {
    cell.shade = std::log(cell.point->backward_s);
    cell.label = display_seconds(cell.point->backward_s);
  }
}

void show_cap(HeatMap& map) {
  for (Cell& cell : map.cells) {
    cell.shade = std::log(static_cast<double>(cell.point->cap_bytes));
    cell.label = display_cap(mib(cell.point->cap_bytes));
  }
}

void show_regret(HeatMap& map) {
  for (Cell& cell : map.cells) {
    cell.shade = regret(*cell.point);
    cell.label = display_percent(cell.shade);
  }
}

double worst_regret(const SensitivityReport& report) {
  double worst = 0;
  for (const SensitivityPoint& point : report.map.cells) worst = std::max(worst, regret(point));
  return worst;
}

}  // namespace

std::vector<Chart> sensitivity_charts(const SensitivityReport& report) {
  HeatMap time = by_influence(report), cap = by_influence(report);
  HeatMap both_cap = latency_by_bandwidth(report), keep = latency_by_bandwidth(report);
  show_time(time);
  show_cap(cap);
  show_cap(both_cap);
  show_regret(keep);
  return {heat_map("sensitivity-time", "Backward time, with the best cap",
                   "Each row multiplies one input and leaves the others. The column 1 is the operating point.",
                   "A heat map of the backward time by input and factor; the table holds its numbers.", time),
          heat_map("sensitivity-cap", "The best uniform cap (MiB)",
                   "Neighbours can differ much at little cost: T(b) is flat around its lowest point. The table says how flat.",
                   "A heat map of the best cap by input and factor; the table holds its numbers.", cap),
          heat_map("latency-bandwidth-cap", "The best uniform cap (MiB) on another network",
                   "Latency is the least time in the all-reduce table; bandwidth divides what comes on top of it.",
                   "A heat map of the best cap by latency and bandwidth.", both_cap),
          heat_map("latency-bandwidth-keep", "What keeping today's cap would cost there",
                   "Backward time with the cap that is best at the operating point, over that with the best cap there, minus one.",
                   fmt::format("Keeping the cap costs at most {} on any of these networks.", display_percent(worst_regret(report))), keep)};
}

}  // namespace firkin
