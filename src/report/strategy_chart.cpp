// The strategies side by side: computation, and the communication that it does not hide.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "chart_parts.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kStrategyRowHeight = 40;
constexpr const char* kCompute = "computation";
constexpr const char* kExposed = "exposed communication";
constexpr const char* kWhole = "step";

// The length of the two parts of a bar. Noise can make a step shorter than one without communication; nothing is exposed then.
struct Parts {
  double compute_s;
  double exposed_s;
};

Parts parts(const StrategyRow& row) {
  const double exposed = std::clamp(row.exposed_s.value_or(0), 0.0, row.measured_s);
  return {row.measured_s - exposed, exposed};
}

double largest_time(const std::vector<StrategyRow>& rows) {
  double largest = 0;
  for (const StrategyRow& row : rows) largest = std::max({largest, row.measured_s, row.measured_ci_s ? row.measured_ci_s->high : 0});
  return largest;
}

json bar_rows(const std::vector<StrategyRow>& rows, const TimeUnit& unit, bool split) {
  json bars = json::array();
  for (const StrategyRow& row : rows) {
    const Parts part = parts(row);
    const json base = {
        {"strategy", row.strategy}, {"measured", display_seconds(row.measured_s)}, {"exposed", display_seconds(part.exposed_s)}};
    json compute = base;
    compute.update({{"kind", split ? kCompute : kWhole}, {"from", 0}, {"to", unit(part.compute_s)}});
    bars.push_back(compute);
    json exposed = base;
    exposed.update({{"kind", kExposed}, {"from", unit(part.compute_s)}, {"to", unit(row.measured_s)}});
    if (split) bars.push_back(exposed);
  }
  return bars;
}

json label_rows(const std::vector<StrategyRow>& rows, const TimeUnit& unit) {
  json labels = json::array();
  for (const StrategyRow& row : rows) {
    const double high = row.measured_ci_s ? std::max(row.measured_s, row.measured_ci_s->high) : row.measured_s;
    json label = {{"strategy", row.strategy}, {"end", unit(high)}, {"label", display_seconds(row.measured_s)}};
    if (row.measured_ci_s) label.update({{"low", unit(row.measured_ci_s->low)}, {"high", unit(row.measured_ci_s->high)}});
    labels.push_back(label);
  }
  return labels;
}

json colour_channel(bool split) {
  const json domain = split ? json::array({kCompute, kExposed}) : json::array({kWhole});
  const json range = split ? json::array({chart_colour("compute"), chart_colour("measured")}) : json::array({chart_colour("compute")});
  json channel = {{"field", "kind"}, {"type", "nominal"}, {"title", nullptr}, {"scale", {{"domain", domain}, {"range", range}}}};
  if (!split) channel["legend"] = nullptr;
  return channel;
}

struct Axes {
  json x;  // without a field
  json y;
};

Axes axes(const std::vector<StrategyRow>& rows, const TimeUnit& unit, double largest_s) {
  std::vector<std::string> names;
  for (const StrategyRow& row : rows) names.push_back(row.strategy);
  const json time = {{"type", "quantitative"},
                     {"scale", {{"domain", {0, unit(largest_s)}}, {"nice", false}}},
                     {"axis", {{"title", fmt::format("step time ({})", unit.symbol)}, {"tickCount", 6}}}};
  return {time, named_rows("strategy", names, 0.42)};
}

json layers_of(const std::vector<StrategyRow>& rows, bool split) {
  const double largest = largest_time(rows);
  const TimeUnit unit = time_unit(largest);
  const auto [time, y] = axes(rows, unit, largest);
  const auto x = [&time = time](const char* field) {
    json channel = time;
    channel["field"] = field;
    return channel;
  };
  const json labels = inline_data(label_rows(rows, unit));
  json with_interval = label_rows(rows, unit);
  with_interval.erase(std::remove_if(with_interval.begin(), with_interval.end(), [](const json& row) { return !row.contains("low"); }),
                      with_interval.end());
  json tooltip = {{{"field", "strategy"}, {"title", "strategy"}}, {{"field", "measured"}, {"title", "step"}}};
  if (split) tooltip.push_back({{"field", "exposed"}, {"title", "exposed"}});

  json layers = json::array();
  layers.push_back(
      {{"data", inline_data(bar_rows(rows, unit, split))},
       {"mark", {{"type", "bar"}, {"opacity", 1}}},
       {"encoding", {{"x", x("from")}, {"x2", {{"field", "to"}}}, {"y", y}, {"color", colour_channel(split)}, {"tooltip", tooltip}}}});
  layers.push_back({{"data", inline_data(with_interval)},
                    {"mark", {{"type", "rule"}, {"color", chart_colour("ink")}, {"strokeWidth", 1.5}}},
                    {"encoding", {{"x", x("low")}, {"x2", {{"field", "high"}}}, {"y", y}}}});
  for (const char* end : {"low", "high"}) {
    layers.push_back({{"data", inline_data(with_interval)},
                      {"mark", {{"type", "tick"}, {"orient", "vertical"}, {"size", 9}, {"thickness", 1.5}, {"color", chart_colour("ink")}}},
                      {"encoding", {{"x", x(end)}, {"y", y}}}});
  }
  layers.push_back({{"data", labels},
                    {"mark", {{"type", "text"}, {"align", "left"}, {"baseline", "middle"}, {"dx", 7}}},
                    {"encoding", {{"x", x("end")}, {"y", y}, {"text", {{"field", "label"}}}}}});
  return layers;
}

}  // namespace

std::vector<StrategyRow> compared_strategies(const Results& results) {
  std::vector<StrategyRow> rows = results.strategies;
  const auto named = [&rows](const std::string& name) { return std::ranges::find(rows, name, &StrategyRow::strategy); };
  if (!results.answer || named("bucketed") != rows.end()) return rows;
  const CurveRow& best = results.answer->best_measured;
  StrategyRow row;
  row.strategy = fmt::format("bucketed {} MiB", display_cap(best.cap_mib));
  row.buckets = best.buckets;
  row.measured_s = *best.measured_s;
  row.measured_ci_s = best.measured_ci_s;
  row.predicted_s = best.predicted_s;
  if (const auto none = named("none"); none != rows.end()) row.exposed_s = row.measured_s - none->measured_s;
  rows.push_back(row);
  return rows;
}

std::optional<Chart> strategy_chart(const Results& results) {
  if (results.strategies.empty()) return std::nullopt;
  const std::vector<StrategyRow> rows = compared_strategies(results);
  const bool split = std::ranges::any_of(rows, [](const StrategyRow& row) { return row.exposed_s.has_value(); });
  const auto fastest =
      std::ranges::min_element(rows, {}, [](const StrategyRow& row) { return row.strategy == "none" ? HUGE_VAL : row.measured_s; });
  Chart chart;
  chart.id = "strategies";
  chart.title = "Strategies compared";
  chart.caption = "Medians of real steps; the thin line is the 95 % interval of the median.";
  if (split) chart.caption += " Exposed communication is what a step takes longer than one without communication (none).";
  chart.summary = fmt::format("Step times of {} strategies; the fastest that communicates is {} at {}.", rows.size(), fastest->strategy,
                              display_seconds(fastest->measured_s));
  chart.spec = chart_frame(kStrategyRowHeight * static_cast<int>(rows.size()), 1);
  chart.spec["layer"] = layers_of(rows, split);
  return chart;
}

}  // namespace firkin
