// Buckets that are chosen while the training runs.
//
//   DataParallel ddp(*net, group, {.buckets = automatic({.plan_file = "buckets.json"})});
//   ...                                                            // train as before
//   // firkin: 7 buckets (largest 2.4 MiB, of unequal size) instead of 25 MiB caps (1 bucket): step 226 ms -> 222 ms (-1.8 %, ...
//
// For the strategy bucketed. All that is timed is the training itself, but for all-reduces between steps.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace firkin {

// What happens, in this order. Only steps count that succeeded and in which every rank had data.
//   - Warm-up: a few steps with DataParallelOptions::cap.
//   - Profiling: profile_steps more, in which hooks note when each gradient is ready.
//   - Measuring: between steps, a quarter of a second at a time, the time of all-reduces by size, on tensors of their own (at most 64 MiB),
//     until budget_s is spent or nothing more is to be learned. Then rank 0 predicts every cap and the best plan of unequal buckets.
//   - Trying: where the best of them is predicted to gain half a percent of a step, it and the buckets in use alternate in blocks of steps.
//   - Settled: the new plan stays if it is faster, or cannot be told from the old one; a line says which, and what it gains.
//
// Guarantees: rank 0 decides and all ranks switch between the same two steps. Gradients are right and equal on all ranks throughout, as
// under any plan. The buckets of one plan go before those of the next are made, at the first gradient of a step, unless gradients still lie
// in them: then each keeps its old bucket until it has moved.
struct AutomaticBuckets {
  double budget_s = 3;         // for measuring all-reduces, in all; more only where one call of the smallest sizes takes more
  int64_t profile_steps = 10;  // 3 or more
  int64_t trial_pairs = 8;     // of a block of steps with the new plan and one with the old; 6 or more, for intervals of 95 %
  int64_t trial_steps = 5;     // of a block, of which the first, in which buckets are made, is not timed; 2 or more
  std::string plan_file = {};  // rank 0's: the choice is kept here, and used from the first step on if it fits; empty: none
  std::function<void(const std::string& line)> log = {};  // on rank 0, for each line; without: standard error
};

// For DataParallelOptions::buckets. Off is the default.
inline AutomaticBuckets automatic(AutomaticBuckets options = {}) {
  return options;
}

enum class AutomaticPhase {
  kWarmUp,
  kProfiling,
  kMeasuring,
  kTrying,
  kSettled,
};

}  // namespace firkin
