// firkin bench allreduce: a(x) and g(x).
#include <fmt/format.h>

#include <memory>

#include "bench/allreduce_bench.h"
#include "command.h"
#include "firkin/base/error.h"
#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "rank_flags.h"
#include "results/sample_shape.h"
#include "run.h"
#include "size_flags.h"

namespace firkin::cli {
namespace {

constexpr double kMixedShare = 0.1;  // of the time, for queues of mixed sizes

struct AllReduceFlags {
  CommonFlags common;
  RankFlags ranks;
  SizeFlags sizes = {.begin = "4", .end = "64M", .factor = 4};
  double seconds = 10;
  bool cold = false;
};

AllReduceSamples samples_of(const std::vector<AllReduceSeries>& series) {
  AllReduceSamples samples;
  for (const AllReduceSeries& size : series) {
    samples.bytes.push_back(size.bytes);
    samples.isolated_s.push_back(size.isolated_s);
    samples.gap_s.push_back(size.gap_s);
  }
  return samples;
}

void add_mixed_queues(const AllReduceFlags& flags, const ProcessGroup& group, double seconds, Results& results) {
  const MixedQueues queues =
      measure_mixed_queues(group, results.allreduce, {.seconds = seconds, .cold = flags.cold, .seed = flags.common.seed});
  if (queues.seconds.empty()) return;
  results.allreduce_samples->mixed_queue_ratios = ratios_to(queues, comm_costs(results.allreduce, group.size));
  results.mixed_queues = mixed_queues_section(results.allreduce_samples->mixed_queue_ratios);
  results.notes.push_back(mixed_queues_note(*results.mixed_queues));
}

void run_rank(const AllReduceFlags& flags, const std::vector<int64_t>& sizes, const ProcessGroup& group) {
  Results results;
  results.run = begin_run("bench-allreduce", flags.common, group);
  std::vector<AllReduceSeries> series;
  const double mixed_s = flags.seconds * kMixedShare;
  {
    Progress progress("measuring all-reduce", kMostRounds, group.rank == 0);
    series = measure_allreduce(group, {.sizes = sizes,
                                       .seconds = flags.seconds - mixed_s,
                                       .cold = flags.cold,
                                       .seed = flags.common.seed,
                                       .on_progress = [&progress](const std::string& done) { progress.advance(done); }});
  }
  results.allreduce = allreduce_table(series, group.size);
  results.allreduce_samples = samples_of(series);
  add_mixed_queues(flags, group, mixed_s, results);
  if (group.rank != 0) return;
  results.caches = flags.cold ? "cold" : "warm";
  mark_sample_shapes(results);
  finish_run(flags.common, results, {{"allreduce.csv", allreduce_csv(results.allreduce)}});
  int64_t wrong = 0;
  for (const AllReduceSeries& size : series) wrong += size.wrong;
  if (wrong > 0) throw RuntimeError(fmt::format("{} elements of the results are not the sum over the ranks; see #wrong", wrong));
}

}  // namespace

Run declare_bench_allreduce(CLI::App& app) {
  auto flags = std::make_shared<AllReduceFlags>();
  app.footer(
      "Takes --seconds, and a little more. Sizes in bytes, bandwidths in GB/s.\n"
      "median, p99, cv: one all-reduce after another, on the slowest rank; short calls\n"
      "are timed several in a row. gap: of one call more when 4 are queued back to\n"
      "back (the model's g; 2 above 64 MiB, none above 128 MiB). A tenth of the time\n"
      "goes to queues of mixed sizes, and a note says whether the model holds there.\n"
      "algbw = size / median; busbw = algbw 2 (n - 1) / n, as nccl-tests prints it.\n"
      "#wrong: elements that differ from the exact sum; exit code 1 if there are any.\n\n"
      "  firkin bench allreduce --ranks 2            4 B to 64 MiB\n"
      "  firkin bench allreduce --ranks 2 --cold     buffers in no cache\n"
      "  firkin bench allreduce --ranks 6 -b 1M -e 1G -f 10 --seconds 120\n");
  add_common_flags(app, flags->common, "bench-allreduce");
  add_rank_flags(app, flags->ranks);
  add_size_flags(app, flags->sizes);
  app.add_option("--seconds", flags->seconds, "time for the whole table")->capture_default_str()->check(CLI::Range(0.1, 1e6));
  app.add_flag("--cold", flags->cold, "every call on a buffer that is in no cache");
  return [flags] {
    const std::vector<int64_t> sizes = checked_sizes(flags->sizes);
    claim_output_folder(flags->common, writes_results());
    return run_on_ranks(flags->ranks, [&](const ProcessGroup& group) { run_rank(*flags, sizes, group); });
  };
}

}  // namespace firkin::cli
