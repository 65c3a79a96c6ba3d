#include "results/allreduce.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "results/run.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr double kGiga = 1e9;

// Bytes per second of one rank's data, and what the links carry of it, as nccl-tests defines them.
double algorithm_bandwidth(const AllReduceRow& row) {
  return static_cast<double>(row.bytes) / row.median_s;
}
double bus_bandwidth(const AllReduceRow& row) {
  const auto ranks = static_cast<double>(row.world_size);
  return algorithm_bandwidth(row) * 2 * (ranks - 1) / ranks;
}

// Figures that follow from others are stated only where the row was measured by `firkin bench allreduce`.
Value if_measured(const AllReduceRow& row, Value value) {
  return row.calls_per_sample ? std::move(value) : Value();
}

constexpr Field<AllReduceRow> kAllReduceFields[] = {
    {AllReduceColumns::kBytes, &AllReduceRow::bytes, Unit::kBytes, "size"},
    {AllReduceColumns::kWorldSize, &AllReduceRow::world_size, Unit::kCount, "ranks", kPage},
    {"count", [](const AllReduceRow& row) { return if_measured(row, row.bytes / kFloatBytes); }, Unit::kCount, "count"},
    {AllReduceColumns::kMedian, &AllReduceRow::median_s, Unit::kSeconds, "median"},
    {AllReduceColumns::kGap, &AllReduceRow::gap_s, Unit::kSeconds, "gap"},
    {"p99_s", &AllReduceRow::p99_s, Unit::kSeconds, "p99"},
    {"cv", [](const AllReduceRow& row) { return if_measured(row, row.stdev_s.value_or(0) / row.mean_s.value_or(1)); }, Unit::kShare, "cv"},
    {AllReduceColumns::kMean, &AllReduceRow::mean_s, Unit::kSeconds, "mean", kHidden},
    {AllReduceColumns::kStdev, &AllReduceRow::stdev_s, Unit::kDifference, "deviation", kHidden},
    {AllReduceColumns::kMin, &AllReduceRow::min_s, Unit::kSeconds, "least", kPage},
    {AllReduceColumns::kMax, &AllReduceRow::max_s, Unit::kSeconds, "greatest", kPage},
    {"algbw_bytes_per_s", [](const AllReduceRow& row) { return if_measured(row, algorithm_bandwidth(row)); }, Unit::kPlain, "", kHidden},
    {"busbw_bytes_per_s", [](const AllReduceRow& row) { return if_measured(row, bus_bandwidth(row)); }, Unit::kPlain, "", kHidden},
    {"algbw", [](const AllReduceRow& row) { return if_measured(row, algorithm_bandwidth(row) / kGiga); }, Unit::kPlain, "algbw",
     kEverywhere | kNotInJson},
    {"busbw", [](const AllReduceRow& row) { return if_measured(row, bus_bandwidth(row) / kGiga); }, Unit::kPlain, "busbw",
     kEverywhere | kNotInJson},
    {AllReduceColumns::kSamples, &AllReduceRow::samples, Unit::kCount, "samples", kPage},
    {"calls_per_sample", &AllReduceRow::calls_per_sample, Unit::kCount, "", kHidden},
    {kOutliersKey, &AllReduceRow::outliers, Unit::kCount, "outliers", kPage},
    {kModesKey, &AllReduceRow::modes_s, Unit::kSeconds, "two modes", kPage},
    {"wrong", &AllReduceRow::wrong, Unit::kCount, "#wrong"}};

constexpr Field<AlphaBeta> kAlphaBetaFields[] = {{"alpha_s", &AlphaBeta::alpha_s, Unit::kDifference},
                                                 {"beta_s_per_byte", &AlphaBeta::beta_s_per_byte, Unit::kPlain},
                                                 {kMedianErrorKey, &AlphaBeta::median_relative_error, Unit::kChange}};

constexpr Field<AllReduceSamples> kSizeSamples[] = {{AllReduceColumns::kBytes, &AllReduceSamples::bytes, Unit::kCount}};
constexpr const char* kIsolated = "isolated_s";
constexpr const char* kMixedQueueRatios = "mixed_queue_ratios";

constexpr Field<MixedQueuesSection> kMixedQueuesFields[] = {{"queues", &MixedQueuesSection::queues, Unit::kCount},
                                                            {"ratio", &MixedQueuesSection::ratio, Unit::kRatio},
                                                            {"ratio_ci", &MixedQueuesSection::ratio_ci, Unit::kRatio}};

}  // namespace

json allreduce_json(const AllReduceTable& table) {
  return rows_to_json<AllReduceRow>(kAllReduceFields, table);
}

AllReduceTable read_allreduce(const std::vector<JsonFields>& rows) {
  AllReduceTable table = rows_from_json<AllReduceRow>(kAllReduceFields, rows);
  std::ranges::stable_sort(table, {}, [](const AllReduceRow& row) { return std::pair(row.world_size, row.bytes); });
  return table;
}

json alpha_beta_json(const AlphaBeta& fit) {
  return to_json<AlphaBeta>(kAlphaBetaFields, fit);
}

AlphaBeta read_alpha_beta(const JsonFields& fields) {
  return from_json<AlphaBeta>(kAlphaBetaFields, fields);
}

json samples_json(const AllReduceSamples& samples) {
  json object = to_json<AllReduceSamples>(kSizeSamples, samples);
  object[kIsolated] = samples.isolated_s;
  object[AllReduceColumns::kGap] = samples.gap_s;
  if (!samples.mixed_queue_ratios.empty()) object[kMixedQueueRatios] = samples.mixed_queue_ratios;
  return object;
}

AllReduceSamples read_allreduce_samples(const JsonFields& fields) {
  AllReduceSamples samples = from_json<AllReduceSamples>(kSizeSamples, fields);
  samples.isolated_s = fields.maybe_series(kIsolated);
  samples.gap_s = fields.maybe_series(AllReduceColumns::kGap);
  samples.mixed_queue_ratios = fields.maybe_numbers(kMixedQueueRatios);
  return samples;
}

MixedQueuesSection mixed_queues_section(const std::vector<double>& ratios) {
  return {.queues = static_cast<int64_t>(ratios.size()), .ratio = median(ratios), .ratio_ci = median_interval(ratios)};
}

json mixed_queues_json(const MixedQueuesSection& queues) {
  return to_json<MixedQueuesSection>(kMixedQueuesFields, queues);
}

MixedQueuesSection read_mixed_queues(const JsonFields& fields) {
  return from_json<MixedQueuesSection>(kMixedQueuesFields, fields);
}

std::string mixed_queues_note(const MixedQueuesSection& queues) {
  return fmt::format("queued in mixed sizes, calls take {:.2f} times ({:.2f} to {:.2f}) what median and gap say.", queues.ratio,
                     queues.ratio_ci->low, queues.ratio_ci->high);
}

Table allreduce_table(const AllReduceTable& table, Medium medium) {
  return table_of<AllReduceRow>(kAllReduceFields, table, medium,
                                "Time of an all-reduce by size (median a(x), gap g(x); bandwidths in GB/s)");
}

}  // namespace firkin
