#include "report/charts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {
namespace {

using nlohmann::json;

// ---- All-reduces: time over size, per call when many are queued, and the alpha-beta line; and the same data in
// chunks.

constexpr const char* kIsolated = "one all-reduce, a(x)";
constexpr const char* kGap = "queued back to back, g(x)";
constexpr const char* kFit = "latency + size / bandwidth";

json allreduce_point(const AllReduceRow& row, const char* kind, double seconds) {
  return {{"bytes", row.bytes},
          {"size", format_bytes(row.bytes)},
          {"world", fmt::format("{} ranks", row.world_size)},
          {"time_s", seconds},
          {"time", display_seconds(seconds)},
          {"kind", kind},
          {"samples", "–"},
          {"interval", "–"}};
}

// The fitted line, and the range of the points that it is drawn in.
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
    points.push_back(allreduce_point(row, kIsolated, row.median_s));
    if (row.samples) points.back()["samples"] = *row.samples;
    if (row.min_s && row.max_s) add_interval(points.back(), Interval{*row.min_s, *row.max_s});
    if (several_worlds) worlds.push_back({{"bytes", row.bytes}, {"time_s", row.median_s}, {"world", points.back()["world"]}});
    if (!row.gap_s) continue;
    points.push_back(allreduce_point(row, kGap, *row.gap_s));
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
  json rows = json::array();
  for (const ChunksRow& row : chunks) {
    rows.push_back({{"bytes", row.chunk_bytes},
                    {"size", format_bytes(row.chunk_bytes)},
                    {"calls", row.calls},
                    {"time_s", row.total_s},
                    {"time", display_seconds(row.total_s)}});
    add_interval(rows.back(), row.total_ci_s);
  }
  const ChunksRow& best = *std::ranges::min_element(chunks, {}, &ChunksRow::total_s);
  return chart_of("chunks", {{"chunks", rows}},
                  fmt::format("Time over chunk size, from {} at {} to {} at {}; least {} at {}.", display_seconds(chunks.front().total_s),
                              format_bytes(chunks.front().chunk_bytes), display_seconds(chunks.back().total_s),
                              format_bytes(chunks.back().chunk_bytes), display_seconds(best.total_s), format_bytes(best.chunk_bytes)));
}

// ---- The time of each layer, forward and backward.

std::optional<Chart> layers_chart(const Results& results) {
  constexpr size_t kMany = 60;  // layers; more of them are drawn in thinner rows, and some names are left out
  if (!results.layers || results.layers->layers.empty()) return std::nullopt;
  const auto time_of = [](const std::vector<double>& seconds) { return seconds.empty() ? 0 : median(seconds); };
  json rows = json::array();
  bool has_forward = false;
  double longest_s = -1;
  std::string longest;
  for (const LayerRow& layer : results.layers->layers) {
    const double forward_s = time_of(layer.forward_s), backward_s = time_of(layer.backward_s);
    rows.push_back({{"layer", layer.name}, {"backward", backward_s}, {"backward_text", display_seconds(backward_s)}});
    if (!layer.forward_s.empty()) rows.back().update({{"forward", forward_s}, {"forward_text", display_seconds(forward_s)}});
    has_forward = has_forward || !layer.forward_s.empty();
    if (forward_s + backward_s <= longest_s) continue;
    longest_s = forward_s + backward_s;
    longest = layer.name;
  }
  Chart chart = chart_of("layers", {{"layers", rows}},
                         fmt::format("Times of {} layers; the longest is {} at {}.", rows.size(), longest, display_seconds(longest_s)));
  if (has_forward) chart.title = "Time of each layer: forward and backward";
  if (rows.size() > kMany) chart.spec["height"]["step"] = 8;
  return chart;
}

// ---- Step time of every setting in every configuration.

// Names that tell the configurations of a run apart: without the model's name if all have the same.
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

// ---- When a step computed and when it communicated, setting by setting.

std::optional<Chart> timeline_chart(const Results& results) {
  const std::vector<TraceRow>& rows = results.traces;
  if (rows.empty()) return std::nullopt;
  json periods = json::array();
  for (const TraceRow& row : rows) {
    for (const BusyPeriod& period : row.timeline) {
      periods.push_back({{"setting", row.name},
                         {"kind", period.activity == kComputeActivity ? "computation" : period.activity},
                         {"from_s", period.start_s},
                         {"to_s", period.end_s},
                         {"start", display_seconds(period.start_s)},
                         {"length", display_seconds(period.end_s - period.start_s)}});
    }
  }
  Chart chart = chart_of("timeline", {{"periods", periods}},
                         fmt::format("Periods of computation and of communication in one step, for {} settings.", rows.size()));
  if (results.run.command == "watch") chart.title = "The last watched step: when each rank computed, and when it communicated";
  return chart;
}

}  // namespace

std::vector<Chart> charts_for(const Results& results) {
  if (results.prediction) return prediction_charts(*results.prediction);
  std::vector<Chart> charts;
  for (const auto& build : {curve_chart, step_matrix_chart, allreduce_chart, chunks_chart, layers_chart, timeline_chart}) {
    if (auto chart = build(results)) charts.push_back(std::move(*chart));
  }
  return charts;
}

}  // namespace firkin
