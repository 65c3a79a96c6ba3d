// When a step computed and when it communicated, setting by setting: as measured, and as predicted.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

void add_periods(nlohmann::json& rows, const std::string& setting, const std::vector<BusyPeriod>& periods, const std::string& prefix) {
  for (const BusyPeriod& period : periods) {
    rows.push_back({{"setting", setting},
                    {"kind", prefix + (period.activity == kComputeActivity ? "computation" : period.activity)},
                    {"from_s", period.start_s},
                    {"to_s", period.end_s},
                    {"start", display_seconds(period.start_s)},
                    {"length", display_seconds(period.end_s - period.start_s)}});
  }
}

}  // namespace

std::optional<Chart> timeline_chart(const Results& results) {
  std::vector<TimelineRow> rows;
  for (const TraceRow& trace : results.traces) rows.push_back({trace.name, trace.timeline, trace.predicted});
  return timeline_chart_of(rows);
}

std::optional<Chart> timeline_chart_of(const std::vector<TimelineRow>& rows) {
  if (rows.empty()) return std::nullopt;
  nlohmann::json periods = nlohmann::json::array();
  for (const TimelineRow& row : rows) {
    add_periods(periods, row.setting, row.measured, "");
    add_periods(periods, row.setting, row.predicted, "predicted ");
  }
  const bool has_predicted = std::ranges::any_of(rows, [](const TimelineRow& row) { return !row.predicted.empty(); });
  Chart chart;
  chart.id = "timeline";
  chart.title = "One step of rank 0: when it computed, and when it communicated";
  chart.caption =
      "Computation: at least one operator ran. Communication: the transport had taken up at least one collective. Communication beside "
      "computation is hidden, and it is only free where it does not take the processor from it. Under the strategy ordered, what is "
      "communicated at the start of the step are gradients of the step before.";
  if (has_predicted) chart.caption += " Below each: the same step as the model predicts it.";
  chart.summary = fmt::format("Periods of computation and of communication in one step{}, for {} settings.",
                              has_predicted ? ", measured and predicted" : "", rows.size());
  chart.spec = filled_chart("timeline", {{"periods", periods}});
  return chart;
}

}  // namespace firkin
