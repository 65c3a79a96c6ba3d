#include "results/chunks.h"

#include "firkin/base/units.h"
#include "firkin/plan/allreduce_table.h"
#include "results/run.h"

namespace firkin {
namespace {

constexpr Field<ChunksRow> kChunksFields[] = {
    {"chunk_bytes", &ChunksRow::chunk_bytes, Unit::kBytes, "chunk"},
    {"chunk_elements", [](const ChunksRow& row) { return Value(row.chunk_bytes / kFloatBytes); }, Unit::kCount, "elements"},
    {AllReduceColumns::kWorldSize, &ChunksRow::world_size, Unit::kCount, "ranks", kCsv},
    {"calls", &ChunksRow::calls, Unit::kCount, "calls"},
    {kChunkTotals, &ChunksRow::total_s, Unit::kSeconds, "all"},
    {"total_ci_s", &ChunksRow::total_ci_s, Unit::kSeconds, "95 % interval"},
    {AllReduceColumns::kGap, &ChunksRow::gap_s, Unit::kSeconds, "per call"},
    {AllReduceColumns::kMean, &ChunksRow::mean_s, Unit::kSeconds, "mean", kCsv},
    {AllReduceColumns::kStdev, &ChunksRow::stdev_s, Unit::kDifference, "deviation", kCsv},
    {AllReduceColumns::kMin, &ChunksRow::min_s, Unit::kSeconds, "least", kCsv},
    {AllReduceColumns::kMax, &ChunksRow::max_s, Unit::kSeconds, "greatest", kCsv},
    {AllReduceColumns::kSamples, &ChunksRow::samples, Unit::kCount, "samples"},
    {kOutliersKey, &ChunksRow::outliers, Unit::kCount, "outliers", kPage},
    {kModesKey, &ChunksRow::modes_s, Unit::kSeconds, "two modes", kPage},
    {"wrong", &ChunksRow::wrong, Unit::kCount, "#wrong", kHidden}};

}  // namespace

nlohmann::json chunks_json(const std::vector<ChunksRow>& rows) {
  return rows_to_json<ChunksRow>(kChunksFields, rows);
}

std::vector<ChunksRow> read_chunks(const std::vector<JsonFields>& rows) {
  return rows_from_json<ChunksRow>(kChunksFields, rows);
}

std::string chunks_csv(const std::vector<ChunksRow>& rows) {
  std::vector<std::vector<std::string>> lines;
  for (const ChunksRow& row : rows) lines.push_back(csv_line<ChunksRow>(kChunksFields, row));
  return csv_lines(csv_names<ChunksRow>(kChunksFields), lines);
}

Table chunks_table(const std::vector<ChunksRow>& rows, Medium medium) {
  return table_of<ChunksRow>(kChunksFields, rows, medium, "The same data by the size of its chunks");
}

}  // namespace firkin
