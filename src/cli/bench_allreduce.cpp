// Firkin bench allreduce, bench chunks and bench collectives: a(x) and g(x), and the collectives that replace an
// all-reduce under `sharded`.
#include "bench/allreduce_bench.h"
#include "bench/chunks_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/progress.h"
#include "firkin/comm/device.h"
#include "job.h"

namespace firkin::cli {
namespace {

// The sizes in bytes, ascending, multiples of 4.
std::vector<int64_t> sizes_in(const SizeFlags& flags) {
  return sizes_between(parse_bytes(flags.begin, "--begin"), parse_bytes(flags.end, "--end"), flags.factor);
}

std::vector<AllReduceSeries> measure(const char* what, AllReduceBenchOptions options, const ProcessGroup& group) {
  Progress progress(what, AllReduceSchedule::kMostRounds, group.rank == 0);
  options.on_progress = [&progress](const std::string& done) { progress.advance(done); };
  return measure_allreduce(group, options);
}

// Ends the run. Throws RuntimeError if any result was wrong. `where`: the file that shows which.
template <class Measured>
void finish(const CommonFlags& common, Results& results, const std::vector<OutputFile>& files, const std::vector<Measured>& sizes,
            const char* where = "; see #wrong") {
  mark_sample_shapes(results);
  finish_run(common, results, files);
  int64_t wrong = 0;
  for (const Measured& size : sizes) wrong += size.wrong;
  if (wrong > 0) throw RuntimeError(fmt::format("{} elements of the results differ from the sum over the ranks{}", wrong, where));
}

// ---- firkin bench allreduce: a(x) and g(x).

constexpr double kMixedShare = 0.1;  // share of the time for queues of mixed sizes

void add_mixed_queues(const AllReduceFlags& flags, const ProcessGroup& group, double seconds, Results& results) {
  const MixedQueues queues =
      measure_mixed_queues(group, results.allreduce, {.seconds = seconds, .cold = flags.cold, .seed = flags.common.seed});
  if (queues.seconds.empty()) return;
  results.allreduce_samples->mixed_queue_ratios = ratios_to(queues, comm_costs(results.allreduce, group.world()));
  results.mixed_queues = mixed_queues_section(results.allreduce_samples->mixed_queue_ratios);
  results.notes.push_back(mixed_queues_note(*results.mixed_queues));
}

void run_rank(const AllReduceFlags& flags, const std::vector<int64_t>& sizes, const ProcessGroup& group) {
  Results results = begin_run("bench-allreduce", flags.common, group);
  const double mixed_s = flags.sizes.seconds * kMixedShare;
  const std::vector<AllReduceSeries> series =
      measure("measuring all-reduce",
              {.sizes = sizes, .seconds = flags.sizes.seconds - mixed_s, .cold = flags.cold, .seed = flags.common.seed}, group);
  results.allreduce = allreduce_table(series, group.world());
  results.allreduce_samples = samples_of(series);
  add_mixed_queues(flags, group, mixed_s, results);
  if (group.rank != 0) return;
  results.caches = flags.cold ? "cold" : "warm";
  finish(flags.common, results, {{"allreduce.csv", allreduce_csv(results.allreduce)}}, series);
}

// ---- firkin bench collectives: all-reduces, and the collectives that replace them under the strategy sharded.

std::vector<int64_t> sizes_of(const CollectivesFlags& flags) {
  const std::vector<int64_t> sizes = sizes_in(flags.sizes);
  const int64_t ranks = world_size(flags.ranks);
  if (ranks < 2) throw InputError(fmt::format("--ranks {}: expected 2 or more, because one has nothing to scatter or gather", ranks));
  return sliced_sizes(sizes, ranks);
}

// How many of the sizes, the smallest first, fit into this rank's memory. Throws InputError if none does.
int64_t fitting_sizes(const CollectivesFlags& flags, const std::vector<int64_t>& sizes) {
  const int64_t limit = available_memory(flags.memory_limit_bytes, flags.ranks) / local_ranks(flags.ranks);
  const auto fits = [limit](int64_t bytes) { return bytes <= limit / kBuffersOfACollective; };
  if (fits(sizes.front())) return std::ranges::count_if(sizes, fits);
  throw InputError(fmt::format("--begin {}: expected at most {}, a third of the memory of a rank", flags.sizes.begin,
                               format_bytes(limit / kBuffersOfACollective)));
}

// fitting: how many of the sizes fit into this rank's memory.
void run_rank(const CollectivesFlags& flags, std::vector<int64_t> sizes, int64_t fitting, const ProcessGroup& group) {
  Results results = begin_run("bench-collectives", flags.common, group);
  // The least over the ranks.
  const auto count = static_cast<size_t>(-max_over_ranks(group, {-static_cast<double>(fitting)})[0]);
  if (count < sizes.size()) {
    results.notes.push_back(fmt::format("{} and above did not fit into memory ({} a rank) and were skipped.", format_bytes(sizes[count]),
                                        format_bytes(kBuffersOfACollective * sizes[count])));
    sizes.resize(count);
  }
  const std::vector<AllReduceSeries> series = measure("measuring collectives",
                                                      {.sizes = sizes,
                                                       .collectives = {kCollectives.begin(), kCollectives.end()},
                                                       .seconds = flags.sizes.seconds,
                                                       .seed = flags.common.seed},
                                                      group);
  if (group.rank != 0) return;
  results.collectives = collective_rows(series, group.world());
  for (const AllReduceSeries& one : series) results.collective_samples_s.push_back(one.isolated_s);
  finish(flags.common, results, {{"collectives.csv", collectives_csv(results.collectives)}}, series);
}

// ---- firkin bench chunks: a fixed amount of data in chunks of varying size, and g(x).

// The input that is read before any rank starts.
struct ChunksInput {
  std::vector<int64_t> chunk_bytes;
  AllReduceTable table;  // from --allreduce
};

ChunksInput checked_input(const ChunksFlags& flags) {
  constexpr int64_t kMostElements = int64_t{1} << 36;
  const std::vector<int64_t> sizes = sizes_in(flags.sizes);
  if (flags.elements < 1 || flags.elements > kMostElements) {
    throw InputError(fmt::format("--elements {}: expected 1 to {}", flags.elements, kMostElements));
  }
  ChunksInput input;
  input.chunk_bytes = chunk_sizes(sizes, flags.elements);
  for (const int64_t bytes : input.chunk_bytes) chunk_count(flags.elements, bytes);
  if (flags.allreduce.empty()) return input;
  input.table = read_allreduce_csv(flags.allreduce);
  const int64_t ranks = flags.ranks.world.value_or(world_size(flags.ranks));
  if (std::ranges::none_of(input.table, [ranks](const AllReduceRow& row) { return row.world_size == ranks; })) {
    throw InputError(fmt::format("{}: no row for {} ranks; expected an allreduce.csv measured on that many", flags.allreduce, ranks));
  }
  return input;
}

std::vector<ChunksPoint> measure(const ChunksFlags& flags, const ChunksInput& input, const ProcessGroup& group) {
  const int total = std::max(1, static_cast<int>(flags.sizes.seconds));  // progress counts seconds
  int shown = 0;
  Progress progress("measuring chunks: second", total, group.rank == 0);
  return measure_chunks(group, {.elements = flags.elements,
                                .chunk_bytes = input.chunk_bytes,
                                .seconds = flags.sizes.seconds,
                                .seed = flags.common.seed,
                                .on_progress = [&](const std::string& done, double seconds) {
                                  for (; shown < std::min(total, static_cast<int>(seconds)); ++shown) progress.advance(done);
                                }});
}

void run_rank(const ChunksFlags& flags, const ChunksInput& input, const ProcessGroup& group) {
  Results results = begin_run("bench-chunks", flags.common, group);
  const std::vector<ChunksPoint> points = measure(flags, input, group);
  if (group.rank != 0) return;
  results.elements = flags.elements;
  results.chunks = chunk_rows(points, group.size);
  for (const ChunksPoint& point : points) results.chunk_totals_s.push_back(point.total_s);
  std::vector<OutputFile> files = {{"chunks.csv", chunks_csv(results.chunks)}};
  if (!flags.allreduce.empty()) {
    results.allreduce = input.table;
    const int64_t rows = set_gaps(results.allreduce, group.world(), points);
    results.notes.push_back(
        fmt::format("allreduce.csv has new gaps in {} of the {} rows of {}.", rows, results.allreduce.size(), flags.allreduce));
    files.push_back({"allreduce.csv", allreduce_csv(results.allreduce)});
  }
  finish(flags.common, results, files, points, "");
}

}  // namespace

int run(AllReduceFlags& flags) {
  const std::vector<int64_t> sizes = sizes_in(flags.sizes);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, sizes, group); });
}

int run(CollectivesFlags& flags) {
  const std::vector<int64_t> sizes = sizes_of(flags);
  const int64_t fitting = fitting_sizes(flags, sizes);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, sizes, fitting, group); });
}

int run(ChunksFlags& flags) {
  const ChunksInput input = checked_input(flags);
  return run_on_ranks(flags, [&](const ProcessGroup& group) { run_rank(flags, input, group); });
}

}  // namespace firkin::cli
