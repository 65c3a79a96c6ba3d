// Whether calls of different sizes, queued together as a training step queues them, take what the model says: a(x) and g(x) are measured
// with calls of one size.
//
//   const MixedQueues queues = measure_mixed_queues(group, table, {.seconds = 1});
//   median(ratios_to(queues, comm_costs(table, group.size)));  // measured over modelled
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/plan/allreduce_table.h"

namespace firkin {

struct MixedQueues {
  std::vector<std::vector<int64_t>> bytes;  // of each queue: its calls, in the order of their launch
  std::vector<double> seconds;              // of each queue, from a barrier to its last result on the slowest rank
};

struct MixedQueuesOptions {
  double seconds = 1;  // for everything; more only where kFewestSamples queues take more
  bool cold = false;   // whether caches are emptied before each queue
  uint64_t seed = 0;   // of the sizes; the same on every rank
};

// Queues of four calls, each of a size of `table` drawn at random: a row of this world size and with a gap, of 16 KiB to 16 MiB, small
// enough that the time is enough for some queues. None where there are fewer than two such sizes. Collective: every rank gets the same.
MixedQueues measure_mixed_queues(const ProcessGroup& group, const AllReduceTable& table, const MixedQueuesOptions& options);

// Of each queue, its seconds over those that simulate() gives buckets that are all ready at once.
std::vector<double> ratios_to(const MixedQueues& queues, const CommCosts& costs);

}  // namespace firkin
