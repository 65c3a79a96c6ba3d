// Heat maps: one cell per factor of an input, darker for more.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_parts.h"
#include "firkin/base/units.h"
#include "report/sensitivity_page.h"
#include "results/numbers.h"
#include "results/prediction.h"

namespace firkin {
namespace {

using nlohmann::json;

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

Chart heat_map(std::string id, std::string title, std::string caption, std::string summary, const HeatMap& map) {
  json cells = json::array();
  for (const Cell& cell : map.cells) {
    cells.push_back({{"column", cell.column},
                     {"row", cell.row},
                     {"shade", cell.shade},
                     {"label", cell.label},
                     {"cap", display_cap(mib(cell.point->cap_bytes)) + " MiB"},
                     {"time", display_seconds(cell.point->backward_s)},
                     {"exposed", display_seconds(cell.point->exposed_s)},
                     {"keep", display_percent(cost_of_keeping(*cell.point), true)}});
  }
  json spec = filled_chart("heat_map", {{"cells", std::move(cells)}});
  spec["encoding"]["x"]["axis"]["title"] = map.column_title;
  spec["encoding"]["y"]["axis"]["title"] = map.row_title;
  return {std::move(id), std::move(title), std::move(caption), std::move(summary), std::move(spec)};
}

// Each input by factor.
HeatMap by_influence(const SensitivityReport& report) {
  HeatMap map = {"times its value", "input", {}};
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
    cell.shade = cost_of_keeping(*cell.point);
    cell.label = display_percent(cell.shade);
  }
}

}  // namespace

std::vector<Chart> sensitivity_charts(const SensitivityReport& report) {
  HeatMap time = by_influence(report), cap = by_influence(report);
  HeatMap both_cap = latency_by_bandwidth(report), keep = latency_by_bandwidth(report);
  show_time(time);
  show_cap(cap);
  show_cap(both_cap);
  show_regret(keep);
  const double worst = cost_of_keeping(*std::ranges::max_element(report.map.cells, {}, cost_of_keeping));
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
                   fmt::format("Keeping the cap costs at most {} on any of these networks.", display_percent(worst)), keep)};
}

}  // namespace firkin
