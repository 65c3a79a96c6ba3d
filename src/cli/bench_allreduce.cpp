// firkin bench allreduce: a(x) and g(x).
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/bench/allreduce_bench.h"
#include "rank_flags.h"
#include "results.h"
#include "tune_output.h"

namespace firkin::cli {
namespace {

struct AllReduceFlags {
  CommonFlags common;
  RankFlags ranks;
  double largest_mib = 64;
  double seconds = 10;
};

void print_table(const AllReduceTable& table, int ranks) {
  fmt::print("{:>10} {:>10} {:>10} {:>10} {:>12} {:>12} {:>8}\n", "size", "median", "gap", "min", "algbw", "busbw", "samples");
  for (const AllReduceRow& row : table) {
    const double algbw = static_cast<double>(row.bytes) / row.median_s;
    const double busbw = algbw * 2 * (ranks - 1) / ranks;
    fmt::print("{:>10} {:>10} {:>10} {:>10} {:>10}/s {:>10}/s {:>8}\n", format_bytes(row.bytes), format_seconds(row.median_s),
               format_seconds(row.gap_s.value()), format_seconds(row.min_s.value()), format_bytes(static_cast<int64_t>(algbw)),
               format_bytes(static_cast<int64_t>(busbw)), row.samples.value());
  }
}

void run_rank(const AllReduceFlags& flags, const ProcessGroup& group) {
  AllReduceBenchOptions options{
      .sizes = allreduce_sizes(bytes_from_mib(flags.largest_mib, "--largest-mib")), .seed = flags.common.seed, .on_progress = {}};
  options.seconds_per_size = flags.seconds / (2.0 * static_cast<double>(options.sizes.size()));
  Progress progress("measuring all-reduce", options.rounds, group.rank == 0);
  options.on_progress = [&progress](const std::string& done) { progress.advance(done); };
  const AllReduceTable table = measure_allreduce(group, options);
  if (group.rank != 0) return;
  nlohmann::json json = results_head("bench-allreduce", flags.common.seed);
  json["environment"] = environment(group.size, flags.ranks.backend);
  json["allreduce"] = allreduce_json(table);
  const std::filesystem::path out = flags.common.out;
  write_file_atomically(out / "results.json", json.dump(1) + "\n");
  write_allreduce_csv(out / "allreduce.csv", table);
  if (flags.common.json) {
    print_json(json);
  } else {
    print_table(table, group.size);
    fmt::print("\nwrote {}/: results.json, allreduce.csv\n", out.string());
  }
}

}  // namespace

Run declare_bench_allreduce(CLI::App& app) {
  auto flags = std::make_shared<AllReduceFlags>();
  app.footer(
      "median: one all-reduce on an idle link. gap: seconds per call when 16 are queued\n"
      "back to back. busbw = (size / median) 2 (n - 1) / n, as nccl-tests prints it.\n");
  add_common_flags(app, flags->common);
  add_rank_flags(app, flags->ranks);
  app.add_option("--largest-mib", flags->largest_mib, "largest size, MiB; from 4 B by factors of 4")->capture_default_str();
  app.add_option("--seconds", flags->seconds, "time for the whole table")->capture_default_str()->check(CLI::Range(0.1, 1e6));
  return [flags] {
    if (bytes_from_mib(flags->largest_mib, "--largest-mib") < 4) throw InputError("--largest-mib: expected at least 4 bytes");
    check_output_folder(flags->common.out, "--out");
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, group); });
  };
}

}  // namespace firkin::cli
