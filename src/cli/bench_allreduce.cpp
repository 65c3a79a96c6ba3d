// firkin bench allreduce, bench chunks and bench collectives: a(x), g(x), and what replaces an all-reduce under
// `sharded`.
#include "bench/allreduce_bench.h"
#include "firkin/base/progress.h"
#include "job.h"

namespace firkin::cli {
namespace {

// The sizes in bytes, ascending, multiples of 4.
std::vector<int64_t> sizes_in(const SizeFlags& flags) {
  return sizes_between(flags.begin, flags.end, flags.factor);
}

std::vector<AllReduceSeries> measure(const char* what, AllReduceBenchOptions options, const ProcessGroup& group) {
  Progress progress(what, AllReduceSchedule::kMostRounds, group.rank == 0);
  options.on_progress = [&progress](const std::string& done) { progress.advance(done); };
  return measure_allreduce(group, options);
}

// Ends the run. Throws RuntimeError if any result was wrong.
template <class Measured>
void finish(const CommonFlags& common, Results& results, const std::vector<OutputFile>& files, const std::vector<Measured>& sizes) {
  finish_run(common, results, files);
  int64_t wrong = 0;
  for (const Measured& size : sizes) wrong += size.wrong;
  if (wrong > 0) throw RuntimeError(fmt::format("{} elements are not the sum over the ranks; results.json counts them by size", wrong));
}

void run_rank(const AllReduceFlags& flags, const std::vector<int64_t>& sizes, const ProcessGroup& group) {
  Results results = begin_run("bench-allreduce", flags.common, group);
  const std::vector<AllReduceSeries> series =
      measure("measuring all-reduce", {.sizes = sizes, .seconds = flags.sizes.seconds, .seed = flags.common.seed}, group);
  results.allreduce = allreduce_table(series, group.world());
  for (const AllReduceSeries& size : series) {
    results.samples["bytes"].push_back(size.bytes);
    results.samples["isolated_s"].push_back(size.isolated_s);
    results.samples["gap_s"].push_back(size.gap_s);
  }
  if (group.rank != 0) return;
  finish(flags.common, results, {{"allreduce.csv", allreduce_csv(results.allreduce)}}, series);
}

std::vector<int64_t> sizes_of(const CollectivesFlags& flags) {
  const std::vector<int64_t> sizes = sizes_in(flags.sizes);
  const int64_t ranks = world_size(flags.ranks);
  if (ranks < 2) throw InputError(fmt::format("--ranks {}: expected 2 or more, because one has nothing to scatter or gather", ranks));
  const int64_t most = available_memory({}, flags.ranks) / local_ranks(flags.ranks) / kBuffersOfACollective;
  if (sizes.back() > most) {
    throw InputError(
        fmt::format("--end {}: expected at most {}, a third of the memory of a rank", format_bytes(sizes.back()), format_bytes(most)));
  }
  return sliced_sizes(sizes, ranks);
}

void run_rank(const CollectivesFlags& flags, const std::vector<int64_t>& sizes, const ProcessGroup& group) {
  Results results = begin_run("bench-collectives", flags.common, group);
  const std::vector<AllReduceSeries> series = measure("measuring collectives",
                                                      {.sizes = sizes,
                                                       .collectives = {kCollectives.begin(), kCollectives.end()},
                                                       .seconds = flags.sizes.seconds,
                                                       .seed = flags.common.seed},
                                                      group);
  if (group.rank != 0) return;
  results.collectives = collective_rows(series, group.world());
  for (const AllReduceSeries& one : series) results.samples["seconds"].push_back(one.isolated_s);
  finish(flags.common, results, {}, series);
}

std::vector<ChunksPoint> measure(const ChunksFlags& flags, const std::vector<int64_t>& chunk_bytes, const ProcessGroup& group) {
  const int total = std::max(1, static_cast<int>(flags.sizes.seconds));  // progress counts seconds
  int shown = 0;
  Progress progress("measuring chunks: second", total, group.rank == 0);
  return measure_chunks(group, {.elements = flags.elements,
                                .chunk_bytes = chunk_bytes,
                                .seconds = flags.sizes.seconds,
                                .seed = flags.common.seed,
                                .on_progress = [&](const std::string& done, double seconds) {
                                  for (; shown < std::min(total, static_cast<int>(seconds)); ++shown) progress.advance(done);
                                }});
}

void run_rank(const ChunksFlags& flags, const std::vector<int64_t>& chunk_bytes, const ProcessGroup& group) {
  Results results = begin_run("bench-chunks", flags.common, group);
  const std::vector<ChunksPoint> points = measure(flags, chunk_bytes, group);
  if (group.rank != 0) return;
  results.elements = flags.elements;
  results.chunks = chunk_rows(points, group.size);
  for (const ChunksPoint& point : points) results.samples["total_s"].push_back(point.total_s);
  finish(flags.common, results, {}, points);
}

}  // namespace

int run(AllReduceFlags& flags) {
  const std::vector<int64_t> sizes = sizes_in(flags.sizes);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, sizes, group); });
}

int run(CollectivesFlags& flags) {
  const std::vector<int64_t> sizes = sizes_of(flags);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, sizes, group); });
}

int run(ChunksFlags& flags) {
  const std::vector<int64_t> chunk_bytes = chunk_sizes(sizes_in(flags.sizes), flags.elements);
  for (const int64_t bytes : chunk_bytes) chunk_count(flags.elements, bytes);  // checks them before any rank starts
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, chunk_bytes, group); });
}

}  // namespace firkin::cli
