// The cost curves: time of one all-reduce over its size, per call when many are queued, and the alpha-beta line.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

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

json isolated_point(const AllReduceRow& row) {
  json point = allreduce_point(row, kIsolated, row.median_s);
  if (row.samples) point["samples"] = *row.samples;
  if (!row.min_s || !row.max_s) return point;
  add_interval(point, Interval{*row.min_s, *row.max_s});
  return point;
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

}  // namespace

std::optional<Chart> allreduce_chart(const Results& results) {
  const AllReduceTable& table = results.allreduce;
  if (table.empty()) return std::nullopt;
  const bool several_worlds = table.front().world_size != table.back().world_size;
  json points = json::array(), fit = json::array(), worlds = json::array(), key = {kIsolated};
  for (const AllReduceRow& row : table) {
    points.push_back(isolated_point(row));
    if (several_worlds) worlds.push_back({{"bytes", row.bytes}, {"time_s", row.median_s}, {"world", points.back()["world"]}});
    if (!row.gap_s) continue;
    points.push_back(allreduce_point(row, kGap, *row.gap_s));
    if (key.size() == 1) key.push_back(kGap);
  }
  Chart chart;
  chart.id = "allreduce";
  chart.title = "Time of an all-reduce over its size";
  chart.caption =
      "Points: medians; thin lines: from the least to the greatest sample. Flat where latency dominates, rising where bandwidth does: what "
      "buckets trade against each other.";
  if (results.alpha_beta) {
    key.push_back(kFit);
    fit.push_back(fit_row(*results.alpha_beta, points));
    chart.caption += fit_text(*results.alpha_beta);
  }
  chart.summary = fmt::format("All-reduce times from {} for {} to {} for {}.", display_seconds(table.front().median_s),
                              format_bytes(table.front().bytes), display_seconds(table.back().median_s), format_bytes(table.back().bytes));
  chart.spec = filled_chart("allreduce", {{"points", points}, {"fit", fit}, {"worlds", worlds}});
  set_param(chart.spec, "key", key);
  return chart;
}

}  // namespace firkin
