// firkin bench allreduce, bench chunks and bench collectives: a(x) and g(x), and what takes an all-reduce's place under `sharded`.
#include "bench/allreduce_bench.h"
#include "bench/chunks_bench.h"
#include "comm/across_ranks.h"
#include "firkin/base/progress.h"
#include "firkin/comm/device.h"
#include "job.h"

namespace firkin::cli {
namespace {

// What is measured, named as in nccl-tests, and for how long in all.
struct SizeFlags {
  std::string begin, end;
  int64_t factor = 4;
  double seconds = 10;
};

void add_size_flags(CLI::App& app, SizeFlags& flags) {
  add_value(app, "-b,--begin", flags.begin, "smallest size, bytes; 1K, 1M, 1G: powers of 1024");
  add_value(app, "-e,--end", flags.end, "largest size");
  add_value(app, "-f,--factor", flags.factor, "ratio of successive sizes");
}

void add_time_flag(CLI::App& app, SizeFlags& flags) {
  add_time(app, "--time", flags.seconds, "budget for the whole measurement");
}

// The sizes in bytes, ascending, multiples of 4. Throws InputError, also for the time.
std::vector<int64_t> checked_sizes(const SizeFlags& flags) {
  if (!(flags.seconds >= 0.1 && flags.seconds <= 1e6)) {
    throw InputError(fmt::format("--time {}: expected 100ms to 11 days", format_seconds(flags.seconds)));
  }
  const int64_t begin = parse_bytes(flags.begin, "--begin");
  const int64_t end = parse_bytes(flags.end, "--end");
  if (begin % kFloatBytes != 0) throw InputError(fmt::format("--begin {}: expected a multiple of {} bytes", flags.begin, kFloatBytes));
  if (begin > end) throw InputError(fmt::format("--begin {}: expected at most --end {}", flags.begin, flags.end));
  if (flags.factor < 2) throw InputError(fmt::format("--factor {}: expected a whole number, at least 2", flags.factor));
  return sizes_between(begin, end, flags.factor);
}

std::vector<AllReduceSeries> measure(const char* what, AllReduceBenchOptions options, const ProcessGroup& group) {
  Progress progress(what, kMostRounds, group.rank == 0);
  options.on_progress = [&progress](const std::string& done) { progress.advance(done); };
  return measure_allreduce(group, options);
}

// Ends the run. Throws RuntimeError if any result was wrong. `where`: what shows which.
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

constexpr double kMixedShare = 0.1;  // of the time, for queues of mixed sizes

struct AllReduceFlags : RunFlags {
  SizeFlags sizes = {.begin = "4", .end = "64M"};
  bool cold = false;
};

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

// ---- firkin bench collectives: all-reduces beside what takes their place under the strategy sharded.

struct CollectivesFlags : RunFlags {
  SizeFlags sizes = {.begin = "4K", .end = "64M", .seconds = 30};
  std::optional<int64_t> memory_limit_bytes;  // per rank
};

std::vector<int64_t> sizes_of(const CollectivesFlags& flags) {
  const std::vector<int64_t> sizes = checked_sizes(flags.sizes);
  const int64_t ranks = world_size(flags.ranks);
  if (ranks < 2) throw InputError(fmt::format("--ranks {}: expected 2 or more, because one has nothing to scatter or gather", ranks));
  return sliced_sizes(sizes, ranks);
}

// How many of them, the smallest first, fit into this rank's memory. Throws InputError if none does.
int64_t fitting_sizes(const CollectivesFlags& flags, const std::vector<int64_t>& sizes) {
  const int64_t limit = available_memory(flags.memory_limit_bytes, flags.ranks) / local_ranks(flags.ranks);
  const auto fits = [limit](int64_t bytes) { return bytes <= limit / kBuffersOfACollective; };
  if (fits(sizes.front())) return std::ranges::count_if(sizes, fits);
  throw InputError(fmt::format("--begin {}: expected at most {}, a third of the memory of a rank", flags.sizes.begin,
                               format_bytes(limit / kBuffersOfACollective)));
}

// fitting: of the sizes, on this rank.
void run_rank(const CollectivesFlags& flags, std::vector<int64_t> sizes, int64_t fitting, const ProcessGroup& group) {
  Results results = begin_run("bench-collectives", flags.common, group);
  const auto count = static_cast<size_t>(-max_over_ranks(group, {-static_cast<double>(fitting)})[0]);  // the least
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

struct ChunksFlags : RunFlags {
  SizeFlags sizes = {.begin = "16K", .end = "256M", .seconds = 60};
  int64_t elements = 60'000'000;
  std::string allreduce;
};

// What is known before any rank starts.
struct ChunksInput {
  std::vector<int64_t> chunk_bytes;
  AllReduceTable table;  // of --allreduce
};

ChunksInput checked_input(const ChunksFlags& flags) {
  constexpr int64_t kMostElements = int64_t{1} << 36;
  const std::vector<int64_t> sizes = checked_sizes(flags.sizes);
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

Run declare_bench_allreduce(CLI::App& app) {
  auto flags = std::make_shared<AllReduceFlags>();
  app.footer(
      "Takes --time, and a little more. Sizes in bytes, bandwidths in GB/s.\n\n"
      "median, p99, cv: single all-reduces on the slowest rank; short calls are timed\n"
      "several in a row. gap: time per additional call when 4 are queued (the model's\n"
      "g; 2 above 64 MiB, none above 128 MiB). A tenth of the time goes to queues of\n"
      "mixed sizes, and a note says whether the model holds for them. algbw = size /\n"
      "median; busbw = algbw 2 (n - 1) / n, as nccl-tests prints it. #wrong: elements\n"
      "that differ from the exact sum; exit code 1 if there are any.\n\n"
      "  firkin bench allreduce --ranks 2            4 B to 64 MiB\n"
      "  firkin bench allreduce --ranks 2 --cold     buffers that no cache holds\n"
      "  firkin bench allreduce --ranks 6 -b 1M -e 1G -f 10 --time 2m\n");
  add_run_flags(app, *flags, "bench-allreduce");
  add_size_flags(app, flags->sizes);
  add_time_flag(app, flags->sizes);
  app.add_flag("--cold", flags->cold, "give every call a buffer that no cache holds");
  return [flags] {
    const std::vector<int64_t> sizes = checked_sizes(flags->sizes);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, sizes, group); });
  };
}

Run declare_bench_collectives(CLI::App& app) {
  auto flags = std::make_shared<CollectivesFlags>();
  app.footer(
      "The strategy sharded sends each bucket in two halves: a reduce-scatter leaves\n"
      "every rank the sum of its slice, and after the optimiser an all-gather brings\n"
      "the other ranks' slices. Each moves about half the bytes of an all-reduce.\n"
      "Timed with the operations of the strategy itself (over Gloo the reduce-scatter\n"
      "is an all-to-all and a local sum), in turns with the all-reduce, so that drift\n"
      "of the machine meets all three.\n\n"
      "size: the whole bucket, all ranks' slices together, rounded up to whole ones.\n"
      "median: single calls on the slowest rank, short ones timed several in a row.\n"
      "ratio: to the all-reduce, of turns beside each other. #wrong: elements that\n"
      "differ from the exact sum; exit code 1 if there are any. A size needs three\n"
      "times itself in memory on each rank; larger ones are skipped.\n"
      "collectives.csv: collective,bytes,world_size,seconds.\n\n"
      "  firkin bench collectives --ranks 2                 4 KiB to 64 MiB\n"
      "  firkin bench collectives --ranks 2 -b 1M -e 16M -f 2 --time 1m\n"
      "  firkin bench collectives --ranks 4 --link 1gbit    over a modelled link\n");
  add_run_flags(app, *flags, "bench-collectives");
  add_size_flags(app, flags->sizes);
  add_time_flag(app, flags->sizes);
  add_memory_flag(app, flags->memory_limit_bytes);
  return [flags] {
    const std::vector<int64_t> sizes = sizes_of(*flags);
    const int64_t fitting = fitting_sizes(*flags, sizes);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, sizes, fitting, group); });
  };
}

Run declare_bench_chunks(CLI::App& app) {
  auto flags = std::make_shared<ChunksFlags>();
  app.footer(
      "All-reduces the same data in chunks of one size after another, all chunks in\n"
      "flight together (at most 1024 calls at a time). all: the slowest rank's time\n"
      "for all chunks. per call: g(x), the time of one more queued call of that size.\n"
      "Repeats rounds over all sizes until the time is up.\n\n"
      "  firkin bench chunks --ranks 2                        60 M elements, 16 KiB up\n"
      "  firkin bench chunks --ranks 2 -b 4K -e 64M -f 2 --time 10m\n\n"
      "To predict with a(x) and g(x):\n\n"
      "  firkin bench allreduce --ranks 2 --out run\n"
      "  firkin bench chunks --ranks 2 --allreduce run/allreduce.csv --out run\n"
      "  firkin predict --tensors run/tensors.csv --allreduce run/allreduce.csv\n");
  add_run_flags(app, *flags, "bench-chunks");
  add_size_flags(app, flags->sizes);
  add_value(app, "--elements", flags->elements, "float32 elements of the data");
  add_time_flag(app, flags->sizes);
  app.add_option("--allreduce", flags->allreduce, "add g(x) as gap_s to this table: OUT/allreduce.csv");
  return [flags] {
    const ChunksInput input = checked_input(*flags);
    return run_on_ranks(*flags, [&](const ProcessGroup& group) { run_rank(*flags, input, group); });
  };
}

}  // namespace firkin::cli
