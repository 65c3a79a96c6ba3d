// A fixed amount of data in chunks of different size, as a section of results.json and as chunks.csv.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "results/field.h"

namespace firkin {

// One chunk size of `firkin bench chunks`: the same data in `calls` all-reduces that are under way together. Seconds.
struct ChunksRow {
  int64_t chunk_bytes = 0;
  std::optional<int64_t> world_size = {};
  int64_t calls = 0;
  double total_s = 0;                       // median, of all calls together
  std::optional<Interval> total_ci_s = {};  // 95 %
  std::optional<double> gap_s = {};         // per call
  std::optional<double> mean_s = {}, stdev_s = {}, min_s = {}, max_s = {};
  std::optional<int64_t> samples = {}, wrong = {};
  std::optional<int64_t> outliers = {};  // samples that stand out
  std::optional<Interval> modes_s = {};  // where they have two modes: those
};

nlohmann::json chunks_json(const std::vector<ChunksRow>& rows);
std::vector<ChunksRow> read_chunks(const std::vector<JsonFields>& rows);
std::string chunks_csv(const std::vector<ChunksRow>& rows);
Table chunks_table(const std::vector<ChunksRow>& rows, Medium medium);

// The key of the raw totals within the document's samples: [chunk size][sample], seconds.
inline constexpr const char* kChunkTotals = "total_s";

}  // namespace firkin
