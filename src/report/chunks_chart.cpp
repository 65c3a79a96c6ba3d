// The time of a fixed amount of data over the size of the chunks in which it is all-reduced.
#include <fmt/format.h>

#include <algorithm>

#include "chart_builders.h"
#include "chart_parts.h"
#include "firkin/base/units.h"
#include "results/numbers.h"

namespace firkin {

std::optional<Chart> chunks_chart(const Results& results) {
  const std::vector<ChunksRow>& chunks = results.chunks;
  if (chunks.empty()) return std::nullopt;
  nlohmann::json rows = nlohmann::json::array();
  for (const ChunksRow& row : chunks) {
    rows.push_back({{"bytes", row.chunk_bytes},
                    {"size", format_bytes(row.chunk_bytes)},
                    {"calls", row.calls},
                    {"time_s", row.total_s},
                    {"time", display_seconds(row.total_s)}});
    add_interval(rows.back(), row.total_ci_s);
  }
  const ChunksRow& best = *std::ranges::min_element(chunks, {}, &ChunksRow::total_s);
  Chart chart;
  chart.id = "chunks";
  chart.title = "The same data in chunks of different size";
  chart.caption =
      "Each point: all of the data, all-reduced in chunks that are under way together. Median and 95 % interval. Where the line falls, "
      "every call costs; where it is flat, only the bytes do.";
  chart.summary = fmt::format("Time over chunk size, from {} at {} to {} at {}; least {} at {}.", display_seconds(chunks.front().total_s),
                              format_bytes(chunks.front().chunk_bytes), display_seconds(chunks.back().total_s),
                              format_bytes(chunks.back().chunk_bytes), display_seconds(best.total_s), format_bytes(best.chunk_bytes));
  chart.spec = filled_chart("chunks", {{"chunks", rows}});
  return chart;
}

}  // namespace firkin
