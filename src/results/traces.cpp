#include "results/traces.h"

#include <fmt/format.h>

#include "firkin/stats/summary.h"
#include "results/run.h"
#include "results/steps.h"

namespace firkin {
namespace {

using nlohmann::json;

template <std::vector<double> TraceFigures::*series>
Value median_of(const TraceFigures& figures) {
  return (figures.*series).empty() ? Value() : Value(median(figures.*series));
}

constexpr const char* kStep = kStepSecondsKey;
constexpr const char* kCompute = "compute_s";
constexpr const char* kCommunication = kCommunicationSecondsKey;
constexpr const char* kOverlapped = "overlapped_s";

constexpr Field<TraceFigures> kFigureFields[] = {{kStep, median_of<&TraceFigures::step_s>, Unit::kDifference},
                                                 {kCompute, median_of<&TraceFigures::compute_s>, Unit::kDifference},
                                                 {kCommunication, median_of<&TraceFigures::communication_s>, Unit::kDifference},
                                                 {kOverlapped, median_of<&TraceFigures::overlapped_s>, Unit::kDifference}};

constexpr Field<TraceFigures> kFigureSamples[] = {{kStep, &TraceFigures::step_s, Unit::kPlain},
                                                  {kCompute, &TraceFigures::compute_s, Unit::kPlain},
                                                  {kCommunication, &TraceFigures::communication_s, Unit::kPlain},
                                                  {kOverlapped, &TraceFigures::overlapped_s, Unit::kPlain}};

constexpr Field<BusyPeriod> kPeriodFields[] = {{"activity", &BusyPeriod::activity},
                                               {kStartKey, &BusyPeriod::start_s, Unit::kDifference},
                                               {kEndKey, &BusyPeriod::end_s, Unit::kSeconds}};

constexpr Field<TraceRow> kTraceFields[] = {{kStrategyKey, &TraceRow::strategy},
                                            {kNameKey, &TraceRow::name},
                                            {kCapKey, &TraceRow::cap_mib, Unit::kMib},
                                            {"file", &TraceRow::file},
                                            {"idle_share", &TraceRow::idle_share, Unit::kShare}};
constexpr const char* kTimeline = "timeline";
constexpr const char* kPredictedTimeline = "predicted_timeline";

// A trace's first rank as a row of the table.
struct ShownTrace {
  std::string name;
  std::optional<double> step_s, compute_s, communication_s, overlapped, exposed_s, idle_share;
};

constexpr Field<ShownTrace> kShownFields[] = {
    {"", &ShownTrace::name, Unit::kText, "strategy"},           {"", &ShownTrace::step_s, Unit::kDifference, "step"},
    {"", &ShownTrace::compute_s, Unit::kDifference, "compute"}, {"", &ShownTrace::communication_s, Unit::kDifference, "communication"},
    {"", &ShownTrace::overlapped, Unit::kShare, "overlapped"},  {"", &ShownTrace::exposed_s, Unit::kDifference, "exposed"},
    {"", &ShownTrace::idle_share, Unit::kShare, "idle"}};

ShownTrace shown(const TraceRow& trace) {
  ShownTrace row;
  row.name = trace.name;
  row.idle_share = trace.idle_share;
  if (trace.ranks.empty() || trace.ranks[0].step_s.empty()) return row;
  const TraceFigures& figures = trace.ranks[0];
  row.step_s = median(figures.step_s);
  row.compute_s = median(figures.compute_s);
  row.communication_s = median(figures.communication_s);
  const double overlapped_s = median(figures.overlapped_s);
  row.exposed_s = *row.communication_s - overlapped_s;
  if (*row.communication_s > 0) row.overlapped = overlapped_s / *row.communication_s;
  return row;
}

std::vector<BusyPeriod> read_periods(const std::vector<JsonFields>& rows) {
  std::vector<BusyPeriod> periods;
  for (const JsonFields& fields : rows) {
    periods.push_back(from_json<BusyPeriod>(kPeriodFields, fields));
    const double start_s = periods.back().start_s;
    if (start_s < 0 || start_s > periods.back().end_s) {
      fields.fail(kPeriodFields[1].key, fmt::format("{}", start_s), "0 or more, at most the end");
    }
  }
  return periods;
}

}  // namespace

json traces_json(const std::vector<TraceRow>& traces) {
  json rows = json::array();
  for (const TraceRow& trace : traces) {
    json row = to_json<TraceRow>(kTraceFields, trace);
    for (const TraceFigures& figures : trace.ranks) {
      json rank = to_json<TraceFigures>(kFigureFields, figures);
      rank[kSamplesKey] = to_json<TraceFigures>(kFigureSamples, figures);
      row[kRanksKey].push_back(std::move(rank));
    }
    row[kTimeline] = rows_to_json<BusyPeriod>(kPeriodFields, trace.timeline);
    if (!trace.predicted.empty()) row[kPredictedTimeline] = rows_to_json<BusyPeriod>(kPeriodFields, trace.predicted);
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<TraceRow> read_traces(const std::vector<JsonFields>& rows) {
  std::vector<TraceRow> traces;
  for (const JsonFields& fields : rows) {
    TraceRow trace = from_json<TraceRow>(kTraceFields, fields);
    for (const JsonFields& rank : fields.maybe_objects(kRanksKey)) {
      trace.ranks.push_back(from_json<TraceFigures>(kFigureSamples, rank.object(kSamplesKey)));
    }
    trace.timeline = read_periods(fields.objects(kTimeline));
    trace.predicted = read_periods(fields.maybe_objects(kPredictedTimeline));
    traces.push_back(std::move(trace));
  }
  return traces;
}

Table traces_table(const std::vector<TraceRow>& traces, Medium medium) {
  std::vector<ShownTrace> rows;
  for (const TraceRow& trace : traces) rows.push_back(shown(trace));
  return table_of<ShownTrace>(kShownFields, rows, medium, "Rank 0, medians over the recorded steps");
}

}  // namespace firkin
