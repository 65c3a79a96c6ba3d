// The strategies side by side: computation, and the communication that it does not hide.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

nlohmann::json strategy_bar(const StrategyRow& row, bool split) {
  // Noise can make a step shorter than one without communication; nothing is exposed then.
  const double exposed_s = std::clamp(row.exposed_s.value_or(0), 0.0, row.measured_s);
  nlohmann::json bar = {{"strategy", row.strategy}, {"measured", display_seconds(row.measured_s)}, {"end", row.measured_s}};
  bar[split ? "computation" : "step"] = row.measured_s - exposed_s;
  bar["exposed"] = split ? display_seconds(exposed_s) : "–";
  if (split) bar["exposed communication"] = exposed_s;
  add_interval(bar, row.measured_ci_s);
  if (row.measured_ci_s) bar["end"] = std::max(row.measured_s, row.measured_ci_s->high);
  return bar;
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
  nlohmann::json bars = nlohmann::json::array();
  for (const StrategyRow& row : rows) bars.push_back(strategy_bar(row, split));
  const auto fastest =
      std::ranges::min_element(rows, {}, [](const StrategyRow& row) { return row.strategy == "none" ? HUGE_VAL : row.measured_s; });
  Chart chart;
  chart.id = "strategies";
  chart.title = "Strategies compared";
  chart.caption = "Medians of real steps; the thin line is the 95 % interval of the median.";
  if (split) chart.caption += " Exposed communication is what a step takes longer than one without communication (none).";
  chart.summary = fmt::format("Step times of {} strategies; the fastest that communicates is {} at {}.", rows.size(), fastest->strategy,
                              display_seconds(fastest->measured_s));
  chart.spec = filled_chart("strategies", {{"strategies", bars}});
  set_param(chart.spec, "key", split ? nlohmann::json{"computation", "exposed communication"} : nlohmann::json{"step"});
  return chart;
}

}  // namespace firkin
