// The cost curves: time of one all-reduce over its size, per call when many are queued, and the alpha-beta line.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kAllReduceHeight = 330;
constexpr const char* kIsolated = "one all-reduce, a(x)";
constexpr const char* kGap = "queued back to back, g(x)";
constexpr const char* kFit = "latency + size / bandwidth";

struct Range {
  double low;
  double high;
};

Range size_range(const AllReduceTable& table) {
  const auto [low, high] = std::ranges::minmax(table, {}, &AllReduceRow::bytes);
  constexpr double kMargin = 1.5;  // factor
  return {static_cast<double>(low.bytes) / kMargin, static_cast<double>(high.bytes) * kMargin};
}

json size_channel(const AllReduceTable& table) {
  const Range range = size_range(table);
  return {{"field", "bytes"},
          {"type", "quantitative"},
          {"scale", {{"type", "log"}, {"base", 2}, {"domain", {range.low, range.high}}, {"nice", false}}},
          {"axis",
           {{"title", "size of one all-reduce, x (log scale)"},
            {"values", power_of_two_ticks(range.low, range.high, 9)},
            {"labelExpr", bytes_label_expression()},
            {"grid", false}}}};
}

Range seconds_range(const AllReduceTable& table) {
  constexpr double kMargin = 1.2;  // factor
  Range range{HUGE_VAL, 0};
  for (const AllReduceRow& row : table) {
    for (const double seconds :
         {row.median_s, row.gap_s.value_or(row.median_s), row.min_s.value_or(row.median_s), row.max_s.value_or(row.median_s)}) {
      range = {std::min(range.low, seconds), std::max(range.high, seconds)};
    }
  }
  return {range.low / kMargin, range.high * kMargin};
}

json seconds_channel(const AllReduceTable& table, const std::string& field) {
  const Range range = seconds_range(table);
  return {
      {"field", field},
      {"type", "quantitative"},
      {"scale", {{"type", "log"}, {"domain", {range.low, range.high}}, {"nice", false}}},
      {"axis", {{"title", "time (log scale)"}, {"labelExpr", seconds_label_expression()}, {"values", log_ticks(range.low, range.high)}}}};
}

json point_row(const AllReduceRow& row, const char* kind, double seconds) {
  return {{"bytes", row.bytes},
          {"seconds", seconds},
          {"kind", kind},
          {"world", fmt::format("{} ranks", row.world_size)},
          {"size", format_bytes(row.bytes)},
          {"time", display_seconds(seconds)}};
}

json points(const AllReduceTable& table) {
  json rows = json::array();
  for (const AllReduceRow& row : table) {
    rows.push_back(point_row(row, kIsolated, row.median_s));
    if (row.samples) rows.back()["samples"] = *row.samples;
    if (row.min_s && row.max_s) rows.back()["spread"] = fmt::format("{} to {}", display_seconds(*row.min_s), display_seconds(*row.max_s));
    if (row.gap_s) rows.push_back(point_row(row, kGap, *row.gap_s));
  }
  return rows;
}

json whiskers(const AllReduceTable& table) {
  json rows = json::array();
  for (const AllReduceRow& row : table) {
    if (row.min_s && row.max_s) rows.push_back({{"bytes", row.bytes}, {"low", *row.min_s}, {"high", *row.max_s}});
  }
  return rows;
}

json fit_line(const AllReduceTable& table, const AlphaBeta& fit) {
  constexpr int kPoints = 60;
  const Range range = size_range(table);
  const Range times = seconds_range(table);
  json rows = json::array();
  for (int i = 0; i <= kPoints; ++i) {
    const double bytes = range.low * std::pow(range.high / range.low, static_cast<double>(i) / kPoints);
    const double seconds = fit.alpha_s + fit.beta_s_per_byte * bytes;
    if (seconds >= times.low && seconds <= times.high) rows.push_back({{"bytes", bytes}, {"seconds", seconds}});
  }
  return rows;
}

// The last point of each world size, to be labelled when there are several.
json world_labels(const AllReduceTable& table) {
  json rows = json::array();
  for (size_t i = 0; i < table.size(); ++i) {
    if (i + 1 == table.size() || table[i + 1].world_size != table[i].world_size)
      rows.push_back(point_row(table[i], kIsolated, table[i].median_s));
  }
  return rows;
}

json point_layer(const AllReduceTable& table, bool has_gap, bool has_fit) {
  std::vector<KeyEntry> key = {{kIsolated, "circle", "measured", "measured"}};
  if (has_gap) key.push_back({kGap, "triangle-up", "gap", "gap"});
  if (has_fit) key.push_back({kFit, "stroke", "predicted", "predicted"});
  json encoding = key_encoding(key);
  encoding["x"] = size_channel(table);
  encoding["y"] = seconds_channel(table, "seconds");
  encoding["tooltip"] = {{{"field", "kind"}, {"title", "what"}},
                         {{"field", "size"}, {"title", "size"}},
                         {{"field", "time"}, {"title", "time"}},
                         {{"field", "spread"}, {"title", "least to greatest"}},
                         {{"field", "samples"}, {"title", "samples"}, {"type", "quantitative"}},
                         {{"field", "world"}, {"title", "world"}}};
  return {{"data", inline_data(points(table))}, {"mark", {{"type", "point"}, {"size", 42}, {"opacity", 1}}}, {"encoding", encoding}};
}

// The medians of one world size joined by a thin line, so that several world sizes can be told apart.
json world_line_layer(const AllReduceTable& table) {
  json rows = json::array();
  for (const AllReduceRow& row : table) rows.push_back(point_row(row, kIsolated, row.median_s));
  return {{"data", inline_data(rows)},
          {"mark", {{"type", "line"}, {"color", chart_colour("measured")}, {"opacity", 0.5}, {"strokeWidth", 1}}},
          {"encoding", {{"x", size_channel(table)}, {"y", seconds_channel(table, "seconds")}, {"detail", {{"field", "world"}}}}}};
}

json world_label_layer(const AllReduceTable& table) {
  return {{"data", inline_data(world_labels(table))},
          {"mark", {{"type", "text"}, {"align", "left"}, {"dx", 8}, {"color", chart_colour("muted")}}},
          {"encoding", {{"x", size_channel(table)}, {"y", seconds_channel(table, "seconds")}, {"text", {{"field", "world"}}}}}};
}

std::string fit_text(const AlphaBeta& fit) {
  std::string text = fmt::format(" The fitted line: latency {}", display_seconds(fit.alpha_s));
  if (fit.beta_s_per_byte > 0) text += fmt::format(", bandwidth {:.3g} GB/s", 1e-9 / fit.beta_s_per_byte);
  return text + fmt::format("; its median error is {}.", display_percent(fit.median_relative_error));
}

}  // namespace

std::optional<Chart> allreduce_chart(const Results& results) {
  const AllReduceTable& table = results.allreduce;
  if (table.empty()) return std::nullopt;
  const bool has_gap = std::ranges::any_of(table, [](const AllReduceRow& row) { return row.gap_s.has_value(); });
  const bool several_worlds = table.front().world_size != table.back().world_size;
  json layers = json::array();
  layers.push_back({{"data", inline_data(whiskers(table))},
                    {"mark", {{"type", "rule"}, {"color", chart_colour("measured")}, {"opacity", 0.45}, {"strokeWidth", 1.5}}},
                    {"encoding", {{"x", size_channel(table)}, {"y", seconds_channel(table, "low")}, {"y2", {{"field", "high"}}}}}});
  if (results.alpha_beta) {
    layers.push_back({{"data", inline_data(fit_line(table, *results.alpha_beta))},
                      {"mark", {{"type", "line"}, {"color", chart_colour("predicted")}, {"strokeWidth", 2}}},
                      {"encoding", {{"x", size_channel(table)}, {"y", seconds_channel(table, "seconds")}}}});
  }
  if (several_worlds) layers.push_back(world_line_layer(table));
  layers.push_back(point_layer(table, has_gap, results.alpha_beta.has_value()));
  if (several_worlds) layers.push_back(world_label_layer(table));

  Chart chart;
  chart.id = "allreduce";
  chart.title = "Time of an all-reduce over its size";
  chart.caption =
      "Points: medians; thin lines: from the least to the greatest sample. Flat where latency dominates, rising where bandwidth does: what "
      "buckets trade against each other.";
  if (results.alpha_beta) chart.caption += fit_text(*results.alpha_beta);
  chart.summary = fmt::format("All-reduce times from {} for {} to {} for {}.", display_seconds(table.front().median_s),
                              format_bytes(table.front().bytes), display_seconds(table.back().median_s), format_bytes(table.back().bytes));
  chart.spec = chart_frame(kAllReduceHeight, 1);
  chart.spec["layer"] = layers;
  return chart;
}

}  // namespace firkin
