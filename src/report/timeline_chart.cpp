// When a step computed and when it communicated, strategy by strategy.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kTraceRowHeight = 56;
constexpr const char* kKinds[] = {"compute", "communication"};

double end_of(const TraceRow& trace) {
  double end_s = 0;
  for (const BusyPeriod& period : trace.timeline) end_s = std::max(end_s, period.end_s);
  return end_s;
}

json bars(const std::vector<TraceRow>& traces, const TimeUnit& unit) {
  json rows = json::array();
  for (const TraceRow& trace : traces) {
    for (const BusyPeriod& period : trace.timeline) {
      rows.push_back({{"strategy", trace.name},
                      {"kind", period.activity},
                      {"from", unit(period.start_s)},
                      {"to", unit(period.end_s)},
                      {"start", display_seconds(period.start_s)},
                      {"length", display_seconds(period.end_s - period.start_s)}});
    }
  }
  return rows;
}

std::vector<std::string> names_of(const std::vector<TraceRow>& traces) {
  std::vector<std::string> names;
  for (const TraceRow& trace : traces) names.push_back(trace.name);
  return names;
}

}  // namespace

std::optional<Chart> timeline_chart(const Results& results) {
  const std::vector<TraceRow>& traces = results.traces;
  if (traces.empty()) return std::nullopt;
  const double end_s = end_of(*std::ranges::max_element(traces, {}, end_of));
  const TimeUnit unit = time_unit(end_s);
  Chart chart;
  chart.id = "timeline";
  chart.title = "One step of rank 0: when it computed, and when it communicated";
  chart.caption =
      "Above: at least one operator ran. Below: the transport had taken up at least one collective. Communication beside computation is "
      "hidden, and it is only free where it does not take the processor from it.";
  chart.summary = fmt::format("Periods of computation and of communication in one step, for {} settings.", traces.size());
  chart.spec = chart_frame(kTraceRowHeight * static_cast<int>(traces.size()), 2);
  chart.spec["data"] = inline_data(bars(traces, unit));
  chart.spec["mark"] = {{"type", "bar"}, {"opacity", 1}};
  chart.spec["encoding"] = {{"x",
                             {{"field", "from"},
                              {"type", "quantitative"},
                              {"scale", {{"domain", {0, unit(end_s)}}, {"nice", false}}},
                              {"axis", {{"title", fmt::format("since the start of the step ({})", unit.symbol)}, {"tickCount", 8}}}}},
                            {"x2", {{"field", "to"}}},
                            {"y", named_rows("strategy", names_of(traces), 0.35)},
                            {"yOffset", {{"field", "kind"}, {"type", "nominal"}, {"sort", kKinds}, {"scale", {{"paddingInner", 0.15}}}}},
                            {"color",
                             {{"field", "kind"},
                              {"type", "nominal"},
                              {"title", nullptr},
                              {"scale", {{"domain", kKinds}, {"range", {chart_colour("compute"), chart_colour("measured")}}}}}},
                            {"tooltip",
                             {{{"field", "strategy"}, {"title", "strategy"}},
                              {{"field", "kind"}, {"title", "what"}},
                              {{"field", "start"}, {"title", "from"}},
                              {{"field", "length"}, {"title", "for"}}}}};
  return chart;
}

}  // namespace firkin
