// The time of a fixed amount of data over the size of the chunks in which it is all-reduced.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr int kChunksHeight = 330;

json size_channel(const std::vector<ChunksRow>& chunks) {
  constexpr double kMargin = 1.5;  // factor
  const auto [low, high] = std::ranges::minmax(chunks, {}, &ChunksRow::chunk_bytes);
  const double from = static_cast<double>(low.chunk_bytes) / kMargin;
  const double to = static_cast<double>(high.chunk_bytes) * kMargin;
  return {{"field", "bytes"},
          {"type", "quantitative"},
          {"scale", {{"type", "log"}, {"base", 2}, {"domain", {from, to}}, {"nice", false}}},
          {"axis",
           {{"title", "size of one chunk, 4 bytes an element (log scale)"},
            {"values", power_of_two_ticks(from, to, 9)},
            {"labelExpr", bytes_label_expression()},
            {"grid", false}}}};
}

json seconds_channel(const std::vector<ChunksRow>& chunks, const std::string& field) {
  constexpr double kMargin = 1.2;  // factor
  double low = chunks[0].total_s, high = chunks[0].total_s;
  for (const ChunksRow& row : chunks) {
    const Interval interval = row.total_ci_s.value_or(Interval{row.total_s, row.total_s});
    low = std::min(low, interval.low);
    high = std::max(high, interval.high);
  }
  low /= kMargin;
  high *= kMargin;
  return {{"field", field},
          {"type", "quantitative"},
          {"scale", {{"type", "log"}, {"domain", {low, high}}, {"nice", false}}},
          {"axis",
           {{"title", "time for all chunks (log scale)"}, {"labelExpr", seconds_label_expression()}, {"values", log_ticks(low, high)}}}};
}

json points(const std::vector<ChunksRow>& chunks) {
  json rows = json::array();
  for (const ChunksRow& row : chunks) {
    rows.push_back({{"bytes", row.chunk_bytes},
                    {"seconds", row.total_s},
                    {"size", format_bytes(row.chunk_bytes)},
                    {"calls", row.calls},
                    {"time", display_seconds(row.total_s)}});
    if (!row.total_ci_s) continue;
    rows.back().update(
        {{"low", row.total_ci_s->low},
         {"high", row.total_ci_s->high},
         {"interval", fmt::format("{} to {}", display_seconds(row.total_ci_s->low), display_seconds(row.total_ci_s->high))}});
  }
  return rows;
}

json tooltip() {
  return {{{"field", "size"}, {"title", "chunk"}},
          {{"field", "calls"}, {"title", "calls"}, {"type", "quantitative"}},
          {{"field", "time"}, {"title", "time"}},
          {{"field", "interval"}, {"title", "95 % interval"}}};
}

}  // namespace

std::optional<Chart> chunks_chart(const Results& results) {
  const std::vector<ChunksRow>& chunks = results.chunks;
  if (chunks.empty()) return std::nullopt;
  const json x = size_channel(chunks);
  const json y = seconds_channel(chunks, "seconds");
  const json colour = chart_colour("measured");
  Chart chart;
  chart.id = "chunks";
  chart.title = "The same data in chunks of different size";
  chart.caption =
      "Each point: all of the data, all-reduced in chunks that are under way together. Median and 95 % interval. Where the line falls, "
      "every call costs; where it is flat, only the bytes do.";
  const ChunksRow& best = *std::ranges::min_element(chunks, {}, &ChunksRow::total_s);
  chart.summary = fmt::format("Time over chunk size, from {} at {} to {} at {}; least {} at {}.", display_seconds(chunks.front().total_s),
                              format_bytes(chunks.front().chunk_bytes), display_seconds(chunks.back().total_s),
                              format_bytes(chunks.back().chunk_bytes), display_seconds(best.total_s), format_bytes(best.chunk_bytes));
  chart.spec = chart_frame(kChunksHeight, 1);
  chart.spec["data"] = inline_data(points(chunks));
  chart.spec["layer"] = {
      {{"mark", {{"type", "line"}, {"color", colour}, {"opacity", 0.5}, {"strokeWidth", 1}}}, {"encoding", {{"x", x}, {"y", y}}}},
      {{"mark", {{"type", "rule"}, {"color", colour}, {"strokeWidth", 1.5}}},
       {"encoding", {{"x", x}, {"y", seconds_channel(chunks, "low")}, {"y2", {{"field", "high"}}}}}},
      {{"mark", {{"type", "point"}, {"size", 42}, {"opacity", 1}, {"filled", true}, {"color", colour}}},
       {"encoding", {{"x", x}, {"y", y}, {"tooltip", tooltip()}}}}};
  return chart;
}

}  // namespace firkin
