// A fixed amount of data, all-reduced in chunks that are all under way together: Figures 2a and 2b of the PyTorch DDP
// paper (Li et al., VLDB 2020), and the gap curve g(x) of the performance model.
//
//   const auto points = measure_chunks(group, {.chunk_bytes = sizes_between(4 * kKiB, 64 * kMiB, 4)});
//   points[0].gap_s;  // g(x) of 4 KiB
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/measurements.h"
#include "results/results.h"

namespace firkin {

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

// At most this many calls are in flight: enough that the queue never runs dry, few enough that their handles do not
// fill the memory.
inline constexpr size_t kMostInFlight = 1024;

struct ChunksPoint {
  int64_t chunk_bytes = 0;
  int64_t calls = 0;
  // All chunks, from a barrier to the last result on the slowest rank; in the order measured.
  std::vector<double> total_s;
  double gap_s = 0;   // median seconds per call of a full chunk: the median total times a chunk's share of the data
  int64_t wrong = 0;  // elements that were not the exact sum in the checked first run, over all ranks
};

// How many chunks `elements` float32 make. Throws InputError unless both are positive, chunk_bytes is a multiple of 4,
// and there are at most kMostChunks.
int64_t chunk_count(int64_t elements, int64_t chunk_bytes);

// The sizes that can be chunks of `elements`. Those that are not below the whole are replaced by the whole, once, as
// one call.
std::vector<int64_t> chunk_sizes(const std::vector<int64_t>& sizes, int64_t elements);  // sizes: ascending

// Randomised rounds over all sizes until the time is spent. A size that no longer fits into the time is left out.
// Collective: every rank gets the same points, in the order of options.chunk_bytes. Memory per rank: the data once.
// Throws InputError as chunk_count, and for no sizes or seconds that are not positive.
std::vector<ChunksPoint> measure_chunks(const ProcessGroup& group, const ChunksBenchOptions& options);

// The rows of chunks.csv.
std::vector<ChunksRow> chunk_rows(const std::vector<ChunksPoint>& points, int ranks);

}  // namespace firkin
