// Options of a DataParallel: strategy, buckets, gradient hooks, and buckets chosen during training.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "firkin/plan/bucket_plan.h"

namespace c10d {
class CommHookInterface;
}

namespace firkin {

// How the ranks sum a bucket. By default they exchange its gradients, in the gradients' own dtype.
struct GradientHook {
  std::string name = "none";
  // The dtype ranks exchange: float32 and float64 gradients are divided by the world size, written in this dtype into a
  // buffer that persists across steps, and converted back afterwards. Default: the gradients' own.
  std::optional<at::ScalarType> wire_dtype = std::nullopt;
  // PyTorch's own kind of hook. See comm_hook().
  std::shared_ptr<c10d::CommHookInterface> comm_hook = nullptr;
};

// Sums in bfloat16 or float16: half the bytes of float32, with 8 and 11 significant bits. float16 overflows if a rank's
// gradient divided by the number of ranks, or a sum of these, exceeds 65504. Buckets that are not float32 or float64 are summed unchanged.
GradientHook bf16_compression();
GradientHook fp16_compression();

// A communication hook as PyTorch's DistributedDataParallel takes it (torch/csrc/distributed/c10d/comm.hpp), for the
// strategies bucketed and planned. Called for every bucket in the same order on every rank, it gets this rank's
// gradients, not divided by the world size, one after another; the tensor that its future holds becomes the gradients.
// name: equal on every rank.
//
// A hook that throws, or whose future fails, fails the step on every rank. If other ranks have called it for more
// buckets by then, their collectives never complete: the group is lost with the next step.
GradientHook comm_hook(std::string name, std::shared_ptr<c10d::CommHookInterface> hook);

// Buckets chosen during training, for the strategies bucketed and ordered.
//
//   DataParallel ddp(*net, group, {.buckets = automatic()});
//   ...                                                            // train as before
//   // firkin: takes the best plan, 7 buckets (largest 2.4 MiB), instead of 25 MiB caps, which make 1 bucket (...
//
// Apart from all-reduces between steps, only the training itself is timed, in this order. Failed steps, and steps in
// which a rank had no data, do not count.
//   - Warm-up: a few steps with DataParallelOptions::cap.
//   - Profiling: profile_steps more, in which hooks record when each gradient is ready.
//   - Measuring: between steps, all-reduces by size, on separate tensors of at most 64 MiB, a quarter of a second at a
//     time, until budget_s is spent or there is nothing more to learn. Then rank 0 predicts every cap and the best
//     plan.
//   - Trying: if the best of these is predicted to gain half a percent of a step, blocks of steps alternate between it
//     and the buckets in use.
//   - Settled: the new plan stays unless it is slower; a line says what was chosen and what it gains.
//
// Guarantees: rank 0 decides, and all ranks switch between the same two steps. Gradients are right and equal on all
// ranks throughout, as under any plan. At the first gradient of a step the old buckets are freed before new ones are
// allocated, unless they still hold gradients: then each keeps its old bucket until it has moved.
struct AutomaticBuckets {
  // Seconds for measuring all-reduces, in all; exceeded only if one call of the smallest sizes takes longer.
  double budget_s = 3;
  int64_t profile_steps = 10;                             // 3 or more
  int64_t trial_pairs = 8;                                // pairs of blocks, one with each plan; 6 or more, for 95 % intervals
  int64_t trial_steps = 5;                                // per block; the first, which allocates buckets, is not timed; 2 or more
  std::function<void(const std::string& line)> log = {};  // on rank 0, per line; default: standard error
};

// For DataParallelOptions::buckets, which is off by default.
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

// Must be equal on every rank, except timeout and the log of automatic buckets.
struct DataParallelOptions {
  Strategy strategy = find_strategy("bucketed");
  CapOptions cap;  // for Grouping::kCap
  // For Grouping::kPlan, optional for Wait::kAtFirstUse; over the tensors in ready order.
  std::optional<BucketPlan> plan;
  // For bucketed and ordered, without a plan: starts with `cap` and finds faster buckets during training. See
  // automatic().
  std::optional<AutomaticBuckets> buckets;
  // The order in which gradients become ready, as indices of the trainable parameters in registration order. It is kept
  // if it is given. The default is the reverse of registration order at first, and from the second step on (except
  // under sharded) the order that the first backward has on rank 0.
  std::vector<int64_t> ready_order;
  // For experiments with the strategy ordered: the slack of its launch order (plan/ordered_plan.h). By default ranks
  // choose the slack from observed steps.
  std::optional<double> launch_slack;
  GradientHook gradient_hook;
  std::optional<std::chrono::milliseconds> timeout;  // for each collective in a step; default: the group's
  // If false, call finish_gradient_synchronization() after every backward.
  bool finish_with_backward = true;
  bool find_unused_parameters = false;  // allow parameters a rank's backward does not reach
  // Send rank 0's buffers (batch norm's statistics) to all after every step.
  bool broadcast_buffers = true;
  bool broadcast_parameters = true;  // send rank 0's parameters and buffers to all at construction
  int64_t audit_every = 100;         // steps between audits (DataParallel::audit()); 0: none
  std::string name;                  // names the module in errors; default: "module N", counted per group from 0
};

}  // namespace firkin
