// Measures the time of collectives by size: for an all-reduce the curves a(x), one call at a time, and g(x), queued
// back to back; also for the reduce-scatter and the all-gather that take its place under the strategy sharded.
//
//   const auto series = measure_allreduce(group, {.sizes = sizes_between(4, 64 * kMiB, 4), .seconds = 10});
//   write_allreduce_csv("allreduce.csv", allreduce_table(series, group.size));
//
// Also checks that results are the exact sums.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "measuring/allreduce_schedule.h"
#include "results/results.h"

namespace firkin {

struct AllReduceBenchOptions {
  std::vector<int64_t> sizes;  // bytes, positive multiples of 4 and of an element; with slices of an element a rank
  // Each is measured in every size. Those over slices need CPUs and at least two ranks.
  std::vector<Collective> collectives = {Collective::kAllReduce};
  at::ScalarType dtype = at::kFloat;  // the elements' type, on which the time of a sum depends
  double seconds = 10;                // the budget of AllReduceSchedule
  uint64_t seed = 0;                  // for the order of sizes; the same on every rank
  // Called after each round, at most AllReduceSchedule::kMostRounds times; may be empty.
  std::function<void(const std::string& done)> on_progress = {};
};

// Runs an AllReduceSchedule. Collective: every rank gets the same result, by options.sizes, then options.collectives.
// Checks every element, outside of any timing. Memory per rank: the largest size, or up to four of it within 256 MiB;
// for several collectives, kBuffersOfACollective of it.
std::vector<AllReduceSeries> measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options);

// `sizes`, ascending, rounded up to whole elements in every rank's slice, as the strategy sharded fills its buckets;
// equal ones once.
std::vector<int64_t> sliced_sizes(std::vector<int64_t> sizes, int64_t ranks, at::ScalarType dtype = at::kFloat);

inline constexpr int64_t kBuffersOfACollective = 3;  // itself, what is received, and the transport's copy

// ---- A fixed amount of data in chunks, all in flight together: Figures 2a and 2b of the PyTorch
// DDP paper (Li et al., VLDB 2020), and the gap curve g(x) of the performance model.
//
//   const auto points = measure_chunks(group, {.chunk_bytes = sizes_between(4 * kKiB, 64 * kMiB, 4)});
//   points[0].gap_s;  // g(x) of 4 KiB

struct ChunksBenchOptions {
  int64_t elements = 60'000'000;     // float32, of all chunks together
  std::vector<int64_t> chunk_bytes;  // positive multiples of 4, distinct; a last chunk may be smaller
  double seconds = 60;               // for everything; more only where checking and measuring each size once take more
  uint64_t seed = 0;                 // for the order; the same on every rank
  // Called after every sample; may be empty.
  std::function<void(const std::string& done, double seconds_spent)> on_progress;
};

// More calls than this in one sample are refused, so that their handles fit into memory (about 1 KB each).
inline constexpr int64_t kMostChunks = 1'000'000;

struct ChunksPoint {
  int64_t chunk_bytes = 0;
  int64_t calls = 0;
  // All chunks, from a barrier to the last result on the slowest rank; in the order measured.
  std::vector<double> total_s;
  double gap_s = 0;   // median seconds per call of a full chunk: the median total times a chunk's share of the data
  int64_t wrong = 0;  // elements that were not the exact sum in the checked first run, over all ranks
};

// How many chunks `elements` float32 make. Throws InputError for more than kMostChunks.
int64_t chunk_count(int64_t elements, int64_t chunk_bytes);

// The sizes that can be chunks of `elements`. Those that are not below the whole are replaced by the whole, once, as
// one call.
std::vector<int64_t> chunk_sizes(const std::vector<int64_t>& sizes, int64_t elements);  // sizes: ascending

// Randomised rounds over all sizes until the time is spent. A size that no longer fits into the time is left out.
// Collective: every rank gets the same points, in the order of options.chunk_bytes. Memory per rank: the data once.
// Throws InputError as chunk_count.
std::vector<ChunksPoint> measure_chunks(const ProcessGroup& group, const ChunksBenchOptions& options);

std::vector<ChunksRow> chunk_rows(const std::vector<ChunksPoint>& points, int ranks);

// ---- Buffers whose sum over the ranks is known exactly, element by element: what an all-reduce must give.
//
//   fill_with_known_values(buffer, group.rank, group.size);
//   all_reduce(group, buffer);
//   count_wrong(buffer);  // 0

// Element i becomes (i mod 127) + 1 on rank i mod world_size, and 0 on all others. Whole numbers that all types of
// gradients hold exactly, as their sums; a rank that is left out or counted twice shows, and so does shifted data.
void fill_with_known_values(const at::Tensor& buffer, int rank, int world_size);  // buffer: of one dimension

// How many elements differ from the sum over all ranks, (i mod 127) + 1; first: the i of the buffer's first element.
int64_t count_wrong(const at::Tensor& buffer, int64_t first = 0);

}  // namespace firkin
