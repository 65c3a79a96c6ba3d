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
#include <span>
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

// Runs an AllReduceSchedule. Collective: every rank gets the same result, in the order of options.sizes, and for each
// size in that of options.collectives. Results are checked element by element, outside of any timing. Memory per rank:
// the largest size, at least 256 MiB or what 16 buffers of it take; of several collectives kBuffersOfACollective of the
// largest size, or as much. Throws InputError if there are no sizes, for a size that is no positive multiple of 4 and
// of an element or has other slices, for seconds that are not positive, and for slices on one rank.
std::vector<AllReduceSeries> measure_allreduce(const ProcessGroup& group, const AllReduceBenchOptions& options);

// `sizes`, ascending, rounded up to whole elements in every rank's slice, as the strategy sharded fills its buckets;
// equal ones once.
std::vector<int64_t> sliced_sizes(std::vector<int64_t> sizes, int64_t ranks, at::ScalarType dtype = at::kFloat);

inline constexpr int64_t kBuffersOfACollective = 3;  // itself, what is received, and the transport's copy

// Takes an isolated sample: `calls` calls, one after another. Returns the seconds per call on this rank. Collective.
double time_calls(const ProcessGroup& group, Collective collective, const at::Tensor& buffer, int calls);

// Takes a queued sample: one call for each buffer, queued together after a barrier. Returns the seconds of all calls
// together on this rank. Collective.
double time_queue(const ProcessGroup& group, Collective collective, std::span<const at::Tensor> buffers);

AllReduceSamples samples_of(const std::vector<AllReduceSeries>& series);  // for a results.json

// ---- Sums that are known

// Buffers whose sum over the ranks is known exactly, element by element: what an all-reduce must give.
//
//   fill_with_known_values(buffer, group.rank, group.size);
//   all_reduce(group, buffer);
//   count_wrong(buffer);  // 0

// Element i becomes (i mod 127) + 1 on rank i mod world_size, and 0 on all others. Whole numbers that all types of
// gradients hold exactly, as their sums; a rank that is left out or counted twice shows, and so does shifted data.
void fill_with_known_values(const at::Tensor& buffer, int rank, int world_size);  // buffer: of one dimension

// How many elements differ from the sum over all ranks, (i mod 127) + 1; `first`: the i of the first one.
int64_t count_wrong(const at::Tensor& buffer, int64_t first = 0);

}  // namespace firkin
