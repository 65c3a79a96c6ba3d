// firkin bench allreduce: a(x) and g(x).
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "bench/allreduce_bench.h"
#include "bench/known_sums.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "rank_flags.h"
#include "results.h"
#include "size_flags.h"
#include "tune_output.h"

namespace firkin::cli {
namespace {

struct AllReduceFlags {
  CommonFlags common;
  RankFlags ranks;
  SizeFlags sizes = {.begin = "4", .end = "64M", .factor = 4};
  double seconds = 10;
  bool cold = false;
};

// Bytes per second of one rank's data, and what the links carry of it, as nccl-tests defines them.
double algorithm_bandwidth(int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds;
}
double bus_bandwidth(int64_t bytes, double seconds, int ranks) {
  return algorithm_bandwidth(bytes, seconds) * 2 * (ranks - 1) / ranks;
}

nlohmann::json series_json(const std::vector<AllReduceSeries>& series, int ranks) {
  nlohmann::json rows = allreduce_json(allreduce_table(series, ranks));
  for (size_t i = 0; i < series.size(); ++i) {
    const Summary time = summarize(series[i].isolated_s);
    rows[i].update({{"count", series[i].bytes / kFloatBytes},
                    {"calls_per_sample", series[i].calls_per_sample},
                    {"p99_s", time.p99},
                    {"cv", time.stdev / time.mean},
                    {"algbw_bytes_per_s", algorithm_bandwidth(series[i].bytes, time.median)},
                    {"busbw_bytes_per_s", bus_bandwidth(series[i].bytes, time.median, ranks)},
                    {"wrong", series[i].wrong}});
  }
  return rows;
}

nlohmann::json samples_json(const std::vector<AllReduceSeries>& series) {
  nlohmann::json samples = {
      {"bytes", nlohmann::json::array()}, {"isolated_s", nlohmann::json::array()}, {"gap_s", nlohmann::json::array()}};
  for (const AllReduceSeries& size : series) {
    samples["bytes"].push_back(size.bytes);
    samples["isolated_s"].push_back(size.isolated_s);
    samples["gap_s"].push_back(size.gap_s);
  }
  return samples;
}

void print_sizes(const nlohmann::json& rows) {
  constexpr double kGiga = 1e9;
  fmt::print("{:>8} {:>10} {:>8} {:>8} {:>6} {:>8} {:>9} {:>9} {:>6}\n", "size", "count", "median", "p99", "cv", "gap", "algbw", "busbw",
             "#wrong");
  fmt::print("{:>62} {:>9}\n", "GB/s", "GB/s");
  for (const nlohmann::json& row : rows) {
    const std::string gap = row.contains("gap_s") ? format_seconds(row["gap_s"]) : "-";
    fmt::print("{:>8} {:>10} {:>8} {:>8} {:>4.0f} % {:>8} {:>9.3g} {:>9.3g} {:>6}\n", format_bytes(row["bytes"]),
               row["count"].get<int64_t>(), format_seconds(row["median_s"]), format_seconds(row["p99_s"]), 100 * row["cv"].get<double>(),
               gap, row["algbw_bytes_per_s"].get<double>() / kGiga, row["busbw_bytes_per_s"].get<double>() / kGiga,
               row["wrong"].get<int64_t>());
  }
}

void run_rank(const AllReduceFlags& flags, const std::vector<int64_t>& sizes, const ProcessGroup& group) {
  Progress progress("measuring all-reduce", kMostRounds, group.rank == 0);
  const std::vector<AllReduceSeries> series =
      measure_allreduce(group, {.sizes = sizes,
                                .seconds = flags.seconds,
                                .cold = flags.cold,
                                .seed = flags.common.seed,
                                .on_progress = [&progress](const std::string& done) { progress.advance(done); }});
  if (group.rank != 0) return;
  nlohmann::json json = results_head("bench-allreduce", flags.common.seed);
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["caches"] = flags.cold ? "cold" : "warm";
  json["allreduce"] = series_json(series, group.size);
  json["samples"] = samples_json(series);
  const std::filesystem::path out = flags.common.out;
  write_file_atomically(out / "results.json", json.dump(1) + "\n");
  write_allreduce_csv(out / "allreduce.csv", allreduce_table(series, group.size));
  if (flags.common.json) {
    print_json(json);
  } else {
    print_sizes(json["allreduce"]);
    fmt::print("\nwrote {}/: results.json, allreduce.csv\n", out.string());
  }
  int64_t wrong = 0;
  for (const AllReduceSeries& size : series) wrong += size.wrong;
  if (wrong > 0) throw RuntimeError(fmt::format("{} elements of the results are not the sum over the ranks; see #wrong", wrong));
}

}  // namespace

Run declare_bench_allreduce(CLI::App& app) {
  auto flags = std::make_shared<AllReduceFlags>();
  app.footer(
      "median, p99, cv: one all-reduce after another, on the slowest rank; short calls\n"
      "are timed several in a row. gap: seconds per call when up to 16 are\n"
      "queued back to back (the model's g; not for sizes above 128 MiB).\n"
      "algbw = size / median; busbw = algbw 2 (n - 1) / n, as nccl-tests prints it.\n"
      "#wrong: elements that differ from the exact sum; exit code 1 if there are any.\n\n"
      "  firkin bench allreduce --ranks 2            4 B to 64 MiB\n"
      "  firkin bench allreduce --ranks 2 --cold     buffers in no cache\n"
      "  firkin bench allreduce --ranks 6 -b 1M -e 1G -f 10 --seconds 120\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  add_size_flags(app, flags->sizes);
  app.add_option("--seconds", flags->seconds, "time for the whole table")->capture_default_str()->check(CLI::Range(0.1, 1e6));
  app.add_flag("--cold", flags->cold, "every call on a buffer that is in no cache");
  return [flags] {
    const std::vector<int64_t> sizes = checked_sizes(flags->sizes);
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, sizes, group); });
  };
}

}  // namespace firkin::cli
