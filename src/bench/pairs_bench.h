// Times the links of ranks pair by pair: which of them is slow.
//
//   const std::vector<PairRow> pairs = measure_pairs(group, {.ranks = {0, 1, 2}, .bytes = 8 * kMiB, .seconds = 5});
//   links_of(pairs);  // the rate of each rank's link, and whether it is slow
//
// A collective of all ranks is as slow as its slowest link for all of them, so its times cannot say whose link that is.
// Here one pair at a time exchanges data while the others wait.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "firkin/base/units.h"
#include "firkin/comm/process_group.h"
#include "results/results.h"

namespace firkin {

struct PairsBenchOptions {
  std::vector<int> ranks;    // to be paired, at least two, ascending; the same on every rank
  int64_t bytes = 8 * kMiB;  // that each of a pair sends to the other, positive
  double seconds = 5;        // for all rounds; more only where two rounds take longer
  // Called after every round with the seconds spent; may be empty.
  std::function<void(const std::string& done, double seconds_spent)> on_progress = {};
};

// Each place of `count` in a ring with the next two: all pairs of up to five, two for each place of more.
std::vector<std::pair<size_t, size_t>> ring_pairs(size_t count);

// Exchanges data between CPU memories over Gloo, in rounds over ring_pairs(). Collective: every rank of the group gets
// the same rows, without hosts. Memory per rank: twice options.bytes. Throws RuntimeError if data did not arrive as
// they were sent.
std::vector<PairRow> measure_pairs(const ProcessGroup& group, const PairsBenchOptions& options);

}  // namespace firkin
