// Buckets for the strategy `sharded`, one cap for reduce-scatter and all-gather, and what it takes in time and memory.
//
//   predict_sharded(profile, halves_of(all_reduce), {.ranks = 8}, bucketed_backward_s).cap_bytes;
//   sharded_memory({.elements = 774030080}, 8).total();  // bytes on each rank
#pragma once

#include <cstdint>
#include <optional>

#include "firkin/plan/best_plan.h"
#include "firkin/plan/timeline.h"

namespace firkin {

// The costs during backward, assuming the latency factor calibrated for all-reduces and, where no gap was measured, the
// ratio of queued to single calls of all-reduces. all_reduce: calibrated.
ShardedCosts calibrated(const ShardedCosts& measured, const CommCosts& all_reduce, double latency_factor);

// ---- Memory.

struct TrainedMemory {
  int64_t elements = 0;       // in all parameters
  int64_t element_bytes = 4;  // for a parameter and its gradient

  // Whether float32 copies are stepped, and the state is in float32 as well.
  bool masters() const { return element_bytes < kFloatBytes; }
};

// Bytes of tensors on one rank, activations and padding aside.
struct RankMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;  // in their buckets
  // During a step: slices from other ranks; later, if masters are stepped, the part's gradient in float32.
  int64_t received = 0;
  int64_t optimizer = 0;  // AdamW's two moments of each parameter
  int64_t masters = 0;

  int64_t total() const { return parameters + gradients + received + optimizer + masters; }
};

// Memory without the strategy, for any number of ranks, and with it, on the rank with the largest part. Throws
// InputError unless `ranks` is positive.
RankMemory plain_memory(const TrainedMemory& trained);
RankMemory sharded_memory(const TrainedMemory& trained, int64_t ranks);

// ---- Time.

struct ShardedSearch {
  int64_t ranks = 2;
  CapOptions rule = {};  // its cap is not used
  SearchOptions search = {};
};

struct ShardedCap : UniformCap {
  int64_t cap_bytes = 0;  // the roundest that makes these buckets; if the interval is wide, from its upper half
  Pipeline pipeline;
};

// Simulates every partition of distinct_plans() for both collectives at once. Returns the one with the fewest buckets
// within a thousandth of the shortest period. Throws InputError if profile or options fail their checks, or no cap
// meets the limits.
ShardedCap find_sharded_cap(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options);

struct PredictedSharded : PredictedPeriod {
  int64_t cap_bytes = 0;
  int64_t lowest_cap_bytes = 0, highest_cap_bytes = 0;  // range of caps that make the same buckets
  int64_t buckets = 0;
  std::optional<double> gain_over_ordered = {};  // 1 - period_s / that of ordered, if it is known
  bool halves = false;                           // costs are halves_of() an all-reduce
  RankMemory plain = {}, sharded = {};
};

// bucketed_backward_s: as for predict_ordered(). Ignores trained.elements, which the profile has. Does not set
// gain_over_ordered and halves. Throws InputError as find_sharded_cap().
PredictedSharded predict_sharded(const TensorProfile& profile, const ShardedCosts& costs, const ShardedSearch& options,
                                 double bucketed_backward_s, TrainedMemory trained = {});

}  // namespace firkin
