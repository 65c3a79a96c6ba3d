#include "report/charts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "firkin/base/units.h"

// Files embedded as they are, from CMake: FIRKIN_REPORT_PAGE, page.html as completed by assemble_report_page.py;
// FIRKIN_NOTICES, THIRD_PARTY_NOTICES; FIRKIN_CHARTS, charts.json, ended by a zero here. This source is in no unity build,
// so that a change of these files compiles it alone.
#define FIRKIN_EMBEDDED(name, file) \
  ".global " name "_begin\n.global " name "_end\n" name "_begin:\n.incbin \"" file "\"\n" name "_end:\n.byte 0\n"

asm(".section .rodata\n" FIRKIN_EMBEDDED("firkin_report_page", FIRKIN_REPORT_PAGE) FIRKIN_EMBEDDED("firkin_notices", FIRKIN_NOTICES)
        FIRKIN_EMBEDDED("firkin_charts", FIRKIN_CHARTS) ".previous\n");

extern "C" const char firkin_charts_begin[];

namespace firkin {

using nlohmann::json;

const json& chart_templates() {
  static const json kTemplates = json::parse(firkin_charts_begin);
  return kTemplates;
}

json filled_chart(const std::string& name, json datasets) {
  json spec = chart_templates().at(name);
  const json expected = std::exchange(spec["datasets"], json::object());
  spec.erase("usermeta");
  spec["width"] = "container";
  spec["autosize"] = {{"type", "fit-x"}, {"contains", "padding"}};  // marks beside the plot make it narrower
  spec["padding"] = {{"left", 2}, {"top", 2}, {"right", 6}, {"bottom", 2}};
  spec["config"] = chart_templates()["config"];
  for (const auto& [dataset, rows] : datasets.items()) {
    if (!expected.contains(dataset)) throw std::logic_error(fmt::format("chart {}: no data set '{}'", name, dataset));
  }
  if (datasets.size() != expected.size()) throw std::logic_error(fmt::format("chart {}: a data set would be left empty", name));
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

namespace {

constexpr const char* kIsolated = "one all-reduce, a(x)";
constexpr const char* kGap = "queued back to back, g(x)";
constexpr const char* kFit = "latency + size / bandwidth";
constexpr const char* kChunks = "all chunks";

json allreduce_point(int64_t bytes, const std::string& by, const char* kind, double seconds) {
  return {{"bytes", bytes},
          {"size", format_bytes(bytes)},
          {"world", by},
          {"time_s", seconds},
          {"time", display_seconds(seconds)},
          {"kind", kind},
          {"samples", "–"},
          {"interval", "–"}};
}

// The fitted line over the range of the points.
json fit_row(const AlphaBeta& fit, const json& points) {
  const auto [least, most] = std::ranges::minmax(points, {}, [](const json& point) { return point["bytes"].get<int64_t>(); });
  const auto [shortest, longest] = std::ranges::minmax(points, {}, [](const json& point) { return point["time_s"].get<double>(); });
  return {{"alpha_s", fit.alpha_s}, {"beta_s_per_byte", fit.beta_s_per_byte}, {"least", least["bytes"]},
          {"most", most["bytes"]},  {"shortest", shortest["time_s"]},         {"longest", longest["time_s"]}};
}

std::string fit_text(const AlphaBeta& fit) {
  std::string text = fmt::format(" The fitted line: latency {}", display_seconds(fit.alpha_s));
  if (fit.beta_s_per_byte > 0) text += fmt::format(", bandwidth {:.3g} GB/s", 1e-9 / fit.beta_s_per_byte);
  return text + fmt::format("; its median error is {}.", display_percent(fit.median_relative_error));
}

std::optional<Chart> allreduce_chart(const Results& results) {
  const AllReduceTable& table = results.allreduce;
  if (table.empty()) return std::nullopt;
  const bool several_worlds = table.front().world_size != table.back().world_size;
  json points = json::array(), fit = json::array(), worlds = json::array(), key = {kIsolated};
  for (const AllReduceRow& row : table) {
    const std::string ranks = counted(row.world_size, "rank");
    points.push_back(allreduce_point(row.bytes, ranks, kIsolated, row.median_s));
    if (row.samples) points.back()["samples"] = *row.samples;
    if (row.min_s && row.max_s) add_interval(points.back(), Interval{*row.min_s, *row.max_s});
    if (several_worlds) worlds.push_back({{"bytes", row.bytes}, {"time_s", row.median_s}, {"world", ranks}});
    if (!row.gap_s) continue;
    points.push_back(allreduce_point(row.bytes, ranks, kGap, *row.gap_s));
    if (key.size() == 1) key.push_back(kGap);
  }
  if (results.alpha_beta) {
    key.push_back(kFit);
    fit.push_back(fit_row(*results.alpha_beta, points));
  }
  Chart chart =
      chart_of("allreduce", {{"points", points}, {"fit", fit}, {"worlds", worlds}},
               fmt::format("All-reduce times from {} for {} to {} for {}.", display_seconds(table.front().median_s),
                           format_bytes(table.front().bytes), display_seconds(table.back().median_s), format_bytes(table.back().bytes)));
  if (results.alpha_beta) chart.caption += fit_text(*results.alpha_beta);
  set_param(chart.spec, "key", key);
  return chart;
}

std::optional<Chart> chunks_chart(const Results& results) {
  const std::vector<ChunksRow>& chunks = results.chunks;
  if (chunks.empty()) return std::nullopt;
  json points = json::array(), line = json::array();
  for (const ChunksRow& row : chunks) {
    points.push_back(allreduce_point(row.chunk_bytes, fmt::format("{} calls", row.calls), kChunks, row.total_s));
    points.back()["samples"] = row.samples.value_or(0);
    add_interval(points.back(), row.total_ci_s);
    line.push_back({{"bytes", row.chunk_bytes}, {"time_s", row.total_s}, {"world", ""}});
  }
  const ChunksRow& best = *std::ranges::min_element(chunks, {}, &ChunksRow::total_s);
  Chart chart =
      chart_of("allreduce", {{"points", points}, {"fit", json::array()}, {"worlds", line}},
               fmt::format("Time over chunk size, from {} at {} to {} at {}; least {} at {}.", display_seconds(chunks.front().total_s),
                           format_bytes(chunks.front().chunk_bytes), display_seconds(chunks.back().total_s),
                           format_bytes(chunks.back().chunk_bytes), display_seconds(best.total_s), format_bytes(best.chunk_bytes)));
  chart.id = "chunks";
  chart.title = "The same data in chunks of different size";
  chart.caption =
      "Each point: all of the data, all-reduced in chunks that are in flight together. Median and 95 % interval. Where the line falls, "
      "calls cost time; where it is flat, only bytes do.";
  set_param(chart.spec, "key", {kChunks});
  chart.spec["encoding"]["x"]["axis"]["title"] = "size of one chunk (log scale)";
  chart.spec["encoding"]["y"]["axis"]["title"] = "time for all chunks (log scale)";
  return chart;
}

// Names that tell a run's configurations apart, without the model's name if all have the same.
std::string short_name(const std::vector<StepConfiguration>& all, const ModelDescription& model) {
  const bool one_model = std::ranges::all_of(all, [&model](const auto& other) { return other.model.name == model.name; });
  if (!one_model || !model.batch_size || !model.sequence_length) return name_of(model);
  return fmt::format("batch {}, sequence {}", *model.batch_size, *model.sequence_length);
}

std::optional<Chart> step_matrix_chart(const Results& results) {
  json marks = json::array();
  std::string first;
  for (const StepConfiguration& configuration : results.configurations) {
    if (!configuration.strategies.empty() && first.empty()) first = setting_name(configuration.strategies[0]);
  }
  if (first.empty()) return std::nullopt;
  std::vector<std::string> problems;
  for (const StepConfiguration& configuration : results.configurations) {
    const std::string name = short_name(results.configurations, configuration.model);
    const auto add = [&](const std::string& setting) -> json& {
      marks.push_back({{"configuration", name}, {"setting", setting}, {"measured", "–"}, {"interval", "–"}});
      return marks.back();
    };
    if (configuration.strategies.empty()) {
      add(first)["problem"] = configuration.status;
      problems.push_back(fmt::format("{} ({})", name, configuration.status));
    }
    for (const StrategyRow& row : configuration.strategies) {
      json& mark = add(setting_name(row));
      mark["time_s"] = row.measured_s;
      mark["measured"] = display_seconds(row.measured_s);
      add_interval(mark, row.measured_ci_s);
      mark["end"] = std::max(row.measured_s, mark.value("high", row.measured_s));
    }
  }
  Chart chart = chart_of("step_matrix", {{"steps", marks}},
                         fmt::format("Step times of {} settings in {} configurations; {} not measured.", marks.size() - problems.size(),
                                     results.configurations.size(), problems.size()));
  chart.id = "steps";
  if (!problems.empty()) chart.caption += fmt::format(" Not measured: {}.", fmt::join(problems, "; "));
  return chart;
}

json period_row(const std::string& setting, const std::string& kind, double start_s, double end_s) {
  return {{"setting", setting},
          {"kind", kind},
          {"from_s", start_s},
          {"to_s", end_s},
          {"start", display_seconds(start_s)},
          {"length", display_seconds(end_s - start_s)}};
}

std::optional<Chart> timeline_chart(const Results& results) {
  const std::vector<TraceRow>& rows = results.traces;
  if (rows.empty()) return std::nullopt;
  json periods = json::array();
  for (const TraceRow& row : rows) {
    for (const BusyPeriod& period : row.timeline) {
      periods.push_back(period_row(row.name, period.activity == "compute" ? "computation" : period.activity, period.start_s, period.end_s));
    }
  }
  Chart chart = chart_of("timeline", {{"periods", periods}},
                         fmt::format("Periods of computation and of communication in one step, for {} settings.", rows.size()));
  if (results.run.command == "watch") {
    chart.title = "The last watched step: when each rank computed, and when it communicated";
    chart.caption =
        "Computation: forward, backward and the optimiser. Communication: each bucket from its launch to its end, which is measured for "
        "the "
        "last bucket and estimated from the link's rate for the others.";
  }
  return chart;
}

std::optional<Chart> traced_chart(const Results& results) {
  if (!results.traced) return std::nullopt;
  json periods = json::array();
  for (const TracedRank& rank : results.traced->ranks) {
    for (const TracedPeriod& period : rank.timeline) {
      periods.push_back(period_row(fmt::format("rank {}", rank.rank), period.communicates ? "communication" : "computation", period.start_s,
                                   period.end_s));
    }
  }
  Chart chart = chart_of(
      "timeline", {{"periods", periods}},
      fmt::format("Periods of computation and of all-reduces in one step, on {}.", counted(std::ssize(results.traced->ranks), "rank")));
  chart.title = "One step of the run: when each rank computed, and when its gradients travelled";
  chart.caption =
      "Computation: at least one operator ran, on a GPU one kernel. Communication: at least one all-reduce of gradients was under way; "
      "time that it spends waiting for other ranks is part of it. Gaps shorter than 1/400 of the step are closed.";
  return chart;
}

}  // namespace

std::vector<Chart> charts_for(const Results& results) {
  std::vector<Chart> charts;
  for (const auto& build : {predicted_chart, curve_chart, step_matrix_chart, allreduce_chart, chunks_chart, timeline_chart, traced_chart}) {
    if (auto chart = build(results)) charts.push_back(std::move(*chart));
  }
  return charts;
}

}  // namespace firkin
