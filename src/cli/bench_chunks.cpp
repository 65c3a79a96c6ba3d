// firkin bench chunks: a fixed amount of data in chunks of varying size, and g(x).
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/chunks_bench.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "firkin/stats/interval.h"
#include "firkin/stats/summary.h"
#include "rank_flags.h"
#include "results/sample_shape.h"
#include "run.h"
#include "size_flags.h"

namespace firkin::cli {
namespace {

struct ChunksFlags {
  CommonFlags common;
  RankFlags ranks;
  SizeFlags sizes = {.begin = "16K", .end = "256M", .factor = 4};
  int64_t elements = 60'000'000;
  double seconds = 60;
  std::string allreduce;
};

// What is known before any rank starts.
struct ChunksInput {
  std::vector<int64_t> chunk_bytes;
  AllReduceTable table;  // of --allreduce
};

ChunksInput checked_input(const ChunksFlags& flags) {
  constexpr int64_t kMostElements = int64_t{1} << 36;
  if (flags.elements < 1 || flags.elements > kMostElements) {
    throw InputError(fmt::format("--elements {}: expected 1 to {}", flags.elements, kMostElements));
  }
  ChunksInput input;
  input.chunk_bytes = chunk_sizes(checked_sizes(flags.sizes), flags.elements);
  for (const int64_t bytes : input.chunk_bytes) chunk_count(flags.elements, bytes);
  if (flags.allreduce.empty()) return input;
  input.table = read_allreduce_csv(flags.allreduce);
  const auto info = rank_info_from_environment();
  const int64_t ranks = info ? info->world_size : flags.ranks.ranks;
  if (std::ranges::none_of(input.table, [ranks](const AllReduceRow& row) { return row.world_size == ranks; })) {
    throw InputError(fmt::format("{}: no row for {} ranks; expected the allreduce.csv of as many ranks", flags.allreduce, ranks));
  }
  return input;
}

std::vector<ChunksRow> rows_of(const std::vector<ChunksPoint>& points, int ranks) {
  std::vector<ChunksRow> rows;
  for (const ChunksPoint& point : points) {
    const Summary total = summarize(point.total_s);
    rows.push_back({.chunk_bytes = point.chunk_bytes,
                    .world_size = ranks,
                    .calls = point.calls,
                    .total_s = total.median,
                    .total_ci_s = series_interval(point.total_s),
                    .gap_s = point.gap_s,
                    .mean_s = total.mean,
                    .stdev_s = total.stdev,
                    .min_s = total.min,
                    .max_s = total.max,
                    .samples = static_cast<int64_t>(total.count),
                    .wrong = point.wrong});
  }
  return rows;
}

std::vector<ChunksPoint> measure(const ChunksFlags& flags, const ChunksInput& input, const ProcessGroup& group) {
  const int total = std::max(1, static_cast<int>(flags.seconds));  // progress counts seconds
  int shown = 0;
  Progress progress("measuring chunks: second", total, group.rank == 0);
  return measure_chunks(group, {.elements = flags.elements,
                                .chunk_bytes = input.chunk_bytes,
                                .seconds = flags.seconds,
                                .seed = flags.common.seed,
                                .on_progress = [&](const std::string& done, double seconds) {
                                  for (; shown < std::min(total, static_cast<int>(seconds)); ++shown) progress.advance(done);
                                }});
}

void run_rank(const ChunksFlags& flags, const ChunksInput& input, const ProcessGroup& group) {
  Results results;
  results.run = begin_run("bench-chunks", flags.common, group);
  const std::vector<ChunksPoint> points = measure(flags, input, group);
  if (group.rank != 0) return;
  results.elements = flags.elements;
  results.chunks = rows_of(points, group.size);
  for (const ChunksPoint& point : points) results.chunk_totals_s.push_back(point.total_s);
  mark_sample_shapes(results);
  std::vector<OutputFile> files = {{"chunks.csv", chunks_csv(results.chunks)}};
  if (!flags.allreduce.empty()) {
    results.allreduce = input.table;
    const int64_t rows = set_gaps(results.allreduce, group.size, points);
    results.notes.push_back(
        fmt::format("{} of {} rows of {} have a new gap in allreduce.csv.", rows, results.allreduce.size(), flags.allreduce));
    files.push_back({"allreduce.csv", allreduce_csv(results.allreduce)});
  }
  finish_run(flags.common, results, files);
  int64_t wrong = 0;
  for (const ChunksPoint& point : points) wrong += point.wrong;
  if (wrong > 0) throw RuntimeError(fmt::format("{} elements of the results are not the sum over the ranks", wrong));
}

}  // namespace

Run declare_bench_chunks(CLI::App& app) {
  auto flags = std::make_shared<ChunksFlags>();
  app.footer(
      "All-reduces the same data in chunks of one size, then of another, all chunks\n"
      "under way together (at most 1024 calls at a time). all: the slowest rank's time\n"
      "for all chunks. per call: g(x), what one more queued call of that size takes.\n"
      "Rounds over all sizes until the time is over.\n\n"
      "  firkin bench chunks --ranks 2                        60 M elements, 16 KiB up\n"
      "  firkin bench chunks --ranks 2 -b 4K -e 64M -f 2 --seconds 600\n\n"
      "and g(x) beside a(x), as the performance model takes them:\n\n"
      "  firkin bench allreduce --ranks 2 --out run\n"
      "  firkin bench chunks --ranks 2 --allreduce run/allreduce.csv --out run\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_common_flags(app, flags->common, "bench-chunks");
  add_rank_flags(app, flags->ranks);
  add_size_flags(app, flags->sizes);
  app.add_option("--elements", flags->elements, "float32 elements of the data")->capture_default_str();
  app.add_option("--seconds", flags->seconds, "time for all of it")->capture_default_str()->check(CLI::Range(0.1, 1e6));
  app.add_option("--allreduce", flags->allreduce, "put g(x) into this table's gap_s: OUT/allreduce.csv");
  return [flags] {
    const ChunksInput input = checked_input(*flags);
    claim_output_folder(flags->common, writes_results());
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, input, group); });
  };
}

}  // namespace firkin::cli
