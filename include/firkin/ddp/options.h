// What a DataParallel does with gradients: the strategy, its buckets, what happens to a full bucket, and buckets that are chosen while the
// training runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/comm/process_group.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

// A strategy is data: what travels together, when it is sent, and when it is waited for. `flat` is one bucket sent after backward;
// `overlap` is one tensor a bucket, each sent as soon as it is ready.
enum class Grouping {
  kOneTensorPerBucket,
  kOneBucket,
  kCap,   // buckets up to a cap (bucket_assignment.h)
  kPlan,  // an explicit BucketPlan
};

enum class Launch {
  kNever,          // no communication: the compute-only baseline
  kAfterBackward,  // one blocking all-reduce after another
  kWhenReady,      // during backward, in plan order
  kByTorch,        // as c10d::Reducer sees fit: the peer of `firkin bench step`; DataParallel refuses it
};

enum class Wait {
  kAtStepEnd,
  kAtFirstUse,  // in the next forward, before the first module that uses the parameters (await_parameters.h)
};

struct Strategy {
  std::string_view name;
  Grouping grouping;
  Launch launch;
  std::string_view summary;
  Wait wait = Wait::kAtStepEnd;
};

inline constexpr std::array kStrategies = {
    Strategy{"none", Grouping::kOneTensorPerBucket, Launch::kNever, "no communication: the baseline of exposed communication"},
    Strategy{"naive", Grouping::kOneTensorPerBucket, Launch::kAfterBackward, "one blocking all-reduce per tensor after backward"},
    Strategy{"flat", Grouping::kOneBucket, Launch::kAfterBackward, "one all-reduce of everything after backward"},
    Strategy{"overlap", Grouping::kOneTensorPerBucket, Launch::kWhenReady, "one all-reduce per tensor, during backward"},
    Strategy{"bucketed", Grouping::kCap, Launch::kWhenReady, "one all-reduce per bucket up to a cap, during backward"},
    Strategy{"planned", Grouping::kPlan, Launch::kWhenReady, "one all-reduce per bucket of an explicit plan, during backward"},
    Strategy{"ordered", Grouping::kCap, Launch::kWhenReady,
             "as bucketed or planned, what the next forward needs first goes first and is waited for there", Wait::kAtFirstUse},
    Strategy{"torch", Grouping::kCap, Launch::kByTorch, "c10d::Reducer, PyTorch's own: the peer that the others are compared with"},
};

// Throws InputError that lists the names.
inline const Strategy& find_strategy(std::string_view name) {
  std::string names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == name) return strategy;
    names += (names.empty() ? "" : ", ") + std::string(strategy.name);
  }
  throw InputError("strategy " + std::string(name) + ": expected one of " + names);
}

// A reduction of one bucket under way. `finish` blocks until the bucket holds the result; it runs on the thread that completes the step.
struct BucketReduction {
  Work work;                     // for completion times; may be null
  std::function<void()> finish;  // called first, and then `work` is waited for; may be empty
};

// What happens to a full bucket: the plain all-reduce, a compressed one, or the user's own.
struct GradientHook {
  std::string name;
  // Starts the reduction of `bucket`, a contiguous 1-d tensor that holds this rank's gradients divided by the world size, and must end up
  // holding the sum over the ranks. Called in the same order on every rank, from the thread that runs backward. When it throws, the group
  // is lost: what the other ranks wait for cannot be sent.
  std::function<BucketReduction(const ProcessGroup& group, at::Tensor bucket)> start;
  // What `start` gets, and the ranks exchange: float32 and float64 gradients are divided, then written in this dtype into a buffer that is
  // kept from step to step, and converted back afterwards. Without: the gradients' own dtype.
  std::optional<at::ScalarType> wire_dtype = std::nullopt;
  // Bytes that this rank hands to the collective for what `start` gets. Without: all of it.
  std::function<int64_t(const at::Tensor& bucket)> bytes_on_wire = nullptr;
};

// The sum in the gradients' own dtype.
GradientHook plain_all_reduce();

// The sum in bfloat16 or float16: half the bytes of float32, with their precision (8 and 11 significant bits). float16 overflows where a
// mean is above 65504. Buckets that are not float32 or float64 are summed as they are.
GradientHook bf16_compression();
GradientHook fp16_compression();

// Buckets that are chosen while the training runs, for the strategies bucketed and ordered.
//
//   DataParallel ddp(*net, group, {.buckets = automatic({.plan_file = "buckets.json"})});
//   ...                                                            // train as before
//   // firkin: 7 buckets (largest 2.4 MiB, of unequal size) instead of 25 MiB caps (1 bucket): step 226 ms -> 222 ms (-1.8 %, ...
//
// All that is timed is the training itself, but for all-reduces between steps. What happens, in this order. Only steps count that succeeded
// and in which every rank had data.
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

// Every rank must give the same options; timeout, and automatic buckets' log and file, apart.
struct DataParallelOptions {
  Strategy strategy = find_strategy("bucketed");
  CapOptions cap;                  // for Grouping::kCap
  std::optional<BucketPlan> plan;  // for Grouping::kPlan, and for Wait::kAtFirstUse if given: over the tensors in ready order
  // For bucketed and ordered, without a plan: starts with `cap`, and finds what is best here while it trains. See automatic().
  std::optional<AutomaticBuckets> buckets;
  // The order in which gradients become ready, as indices of the trainable parameters in registration order. Without it: the reverse of
  // registration, and, once the first backward has shown it, rank 0's observed order. Given, it is kept.
  std::vector<int64_t> ready_order;
  GradientHook gradient_hook = plain_all_reduce();
  std::optional<std::chrono::milliseconds> timeout;  // of every collective of a step; without: the group's
  bool finish_with_backward = true;                  // false: finish_gradient_synchronization() after every backward completes the step
  bool find_unused_parameters = false;               // allow parameters that a rank's backward does not reach
  bool broadcast_buffers = true;                     // rank 0's buffers (batch norm's statistics) to all after every step
  bool broadcast_parameters = true;                  // rank 0's parameters and buffers to all at construction
  int64_t audit_every = 100;                         // steps between two audits (DataParallel::audit()); 0: none
  std::string name;                                  // of the module, in errors; without: "module N", counted on the group from 0
};

}  // namespace firkin
