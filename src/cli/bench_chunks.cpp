// firkin bench chunks: a fixed amount of data in chunks of varying size, and g(x).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

#include "bench/chunks_bench.h"
#include "bench/known_sums.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/comm/rank_info.h"
#include "firkin/stats/interval.h"
#include "firkin/stats/summary.h"
#include "rank_flags.h"
#include "report/report.h"
#include "results.h"
#include "size_flags.h"
#include "tune_output.h"

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

// JSON knows no infinity: the upper end of an interval from too few samples.
nlohmann::json finite_or_null(double value) {
  if (std::isfinite(value)) return value;
  return nullptr;
}

nlohmann::json points_json(const std::vector<ChunksPoint>& points, uint64_t seed) {
  nlohmann::json rows = nlohmann::json::array();
  for (const ChunksPoint& point : points) {
    const Summary total = summarize(point.total_s);
    const Interval interval = bootstrap_median(point.total_s, seed);
    rows.push_back({{"chunk_bytes", point.chunk_bytes},
                    {"chunk_elements", point.chunk_bytes / kFloatBytes},
                    {"calls", point.calls},
                    {"total_s", total.median},
                    {"total_ci_s", {{"low", interval.low}, {"high", finite_or_null(interval.high)}}},
                    {"gap_s", point.gap_s},
                    {"mean_s", total.mean},
                    {"stdev_s", total.stdev},
                    {"min_s", total.min},
                    {"max_s", total.max},
                    {"samples", total.count},
                    {"wrong", point.wrong}});
  }
  return rows;
}

std::string chunks_csv(const nlohmann::json& rows, int ranks) {
  std::string text = "bytes,elements,world_size,calls,median_s,low_s,high_s,gap_s,mean_s,stdev_s,min_s,max_s,samples\n";
  for (const nlohmann::json& row : rows) {
    fmt::format_to(std::back_inserter(text), "{},{},{},{},{},{},{},{},{},{},{},{},{}\n", row["chunk_bytes"].get<int64_t>(),
                   row["chunk_elements"].get<int64_t>(), ranks, row["calls"].get<int64_t>(), row["total_s"].get<double>(),
                   row["total_ci_s"]["low"].get<double>(), row["total_ci_s"]["high"].is_null() ? "" : row["total_ci_s"]["high"].dump(),
                   row["gap_s"].get<double>(), row["mean_s"].get<double>(), row["stdev_s"].get<double>(), row["min_s"].get<double>(),
                   row["max_s"].get<double>(), row["samples"].get<int64_t>());
  }
  return text;
}

void print_chunks(const nlohmann::json& rows) {
  fmt::print("{:>8} {:>10} {:>8} {:>9}  {:<19} {:>9} {:>7}\n", "chunk", "elements", "calls", "all", "95 % interval", "per call", "samples");
  for (const nlohmann::json& row : rows) {
    const auto ends = row["total_ci_s"];
    const bool known = row["samples"].get<size_t>() >= kFewestSamples;
    const std::string interval =
        known ? fmt::format("{} - {}", format_seconds(ends["low"]), format_seconds(ends["high"])) : "too few samples";
    fmt::print("{:>8} {:>10} {:>8} {:>9}  {:<19} {:>9} {:>7}\n", format_bytes(row["chunk_bytes"]), row["chunk_elements"].get<int64_t>(),
               row["calls"].get<int64_t>(), format_seconds(row["total_s"]), interval, format_seconds(row["gap_s"]),
               row["samples"].get<int64_t>());
  }
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
  const std::vector<ChunksPoint> points = measure(flags, input, group);
  if (group.rank != 0) return;
  nlohmann::json json = results_head("bench-chunks", flags.common.seed);
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["elements"] = flags.elements;
  json["chunks"] = points_json(points, flags.common.seed);
  for (const ChunksPoint& point : points) json["samples"]["total_s"].push_back(point.total_s);
  const std::filesystem::path out = flags.common.out;
  std::string written = "results.json, chunks.csv, chunks.html";
  std::string merged;
  if (!flags.allreduce.empty()) {
    AllReduceTable table = input.table;
    const int64_t rows = set_gaps(table, group.size, points);
    json["allreduce"] = allreduce_json(table);
    write_allreduce_csv(out / "allreduce.csv", table);
    written += ", allreduce.csv";
    merged = fmt::format("gap_s of {} of its {} rows is new in allreduce.csv ({})\n", rows, table.size(), flags.allreduce);
  }
  write_file_atomically(out / "results.json", json.dump(1) + "\n");
  write_file_atomically(out / "chunks.csv", chunks_csv(json["chunks"], group.size));
  write_file_atomically(out / "chunks.html", render_report(json));
  if (flags.common.json) {
    print_json(json);
  } else {
    print_chunks(json["chunks"]);
    fmt::print("\n{}wrote {}/: {}\n", merged, out.string(), written);
  }
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
      "Four rounds over all sizes; then those with the widest interval are measured\n"
      "again until the time is over.\n\n"
      "  firkin bench chunks --ranks 2                        60 M elements, 16 KiB up\n"
      "  firkin bench chunks --ranks 2 -b 4K -e 64M -f 2 --seconds 600\n\n"
      "and g(x) beside a(x), as the performance model takes them:\n\n"
      "  firkin bench allreduce --ranks 2 --out run\n"
      "  firkin bench chunks --ranks 2 --allreduce run/allreduce.csv --out run\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_size_flags(app, flags->sizes);
  app.add_option("--elements", flags->elements, "float32 elements of the data")->capture_default_str();
  app.add_option("--seconds", flags->seconds, "time for all of it")->capture_default_str()->check(CLI::Range(0.1, 1e6));
  app.add_option("--allreduce", flags->allreduce, "put g(x) into this table's gap_s: OUT/allreduce.csv");
  return [flags] {
    const ChunksInput input = checked_input(*flags);
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, input, group); });
  };
}

}  // namespace firkin::cli
