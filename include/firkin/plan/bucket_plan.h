// Bucket plans: which gradients travel together, in which order they are launched, and the rules that fill buckets up
// to a cap.
//
//   BucketPlan plan = assign_buckets(sizes, {.cap_bytes = 25 * kMiB});
//   plan.buckets[0];  // {first: 0, count: 3}: tensors 0, 1, 2 in gradient-ready order
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "firkin/base/units.h"

namespace firkin {

// A contiguous run of tensors in gradient-ready order.
struct Bucket {
  int64_t first = 0;
  int64_t count = 0;

  bool operator==(const Bucket&) const = default;
};

struct BucketPlan {
  std::vector<Bucket> buckets;             // in gradient-ready order; together they hold every tensor exactly once
  std::vector<int64_t> launch_order = {};  // a permutation of the buckets' indices; empty means gradient-ready order

  bool operator==(const BucketPlan&) const = default;
};

// Throws InputError unless the buckets are non-empty, contiguous and cover tensors 0..tensor_count-1 in order, and
// launch_order is empty or a permutation.
void check_plan(const BucketPlan& plan, int64_t tensor_count);

// The plan whose k-th bucket holds counts[k] tensors, which are not checked; and the two ends of the scale.
BucketPlan plan_of_counts(std::span<const int64_t> counts);
BucketPlan one_tensor_per_bucket(size_t tensors);
BucketPlan one_bucket(size_t tensors);

// In memory a bucket, and every gradient in it, begins at a multiple of this, in bytes: whole cache lines, and the widest
// loads of any device. Between gradients there may be gaps, which travel with the bucket.
inline constexpr int64_t kGradientAlignment = 256;

// Bytes of each bucket, without gaps. `sizes`: bytes per gradient in gradient-ready order. The plan must have passed check_plan.
std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes);

enum class CapRule {
  kAtMost,         // start a new bucket when the next tensor would exceed the cap (CS336 hand-out)
  kCloseWhenFull,  // append, then close once the size reaches the cap (PyTorch)
};

std::string name_of(CapRule rule);  // "at-most", "close-when-full"

struct CapOptions {
  int64_t cap_bytes = 25 * kMiB;  // PyTorch's default
  CapRule rule = CapRule::kCloseWhenFull;
  // Cap of the first bucket, so that communication starts early (PyTorch: 1 MiB).
  std::optional<int64_t> first_cap_bytes = std::nullopt;
};

// The default of PyTorch's DistributedDataParallel (bucket_cap_mb=None).
inline constexpr CapOptions kTorchDefaultCaps = {.cap_bytes = 25 * kMiB, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = 1 * kMiB};

// `rule` with another cap.
CapOptions with_cap(CapOptions rule, int64_t cap_bytes);

// Groups tensors into buckets. sizes: bytes per gradient in gradient-ready order; zero is allowed and never closes a
// bucket. A tensor larger than the cap gets a bucket of its own under kAtMost. O(tensors). Throws InputError if a cap is
// not positive or a size is negative.
BucketPlan assign_buckets(std::span<const int64_t> sizes, const CapOptions& options);

struct CapInterval {
  int64_t lowest_cap_bytes = 0;
  int64_t highest_cap_bytes = 0;  // int64's largest value when a larger cap changes nothing
};

// All caps that make the same buckets as options.cap_bytes does (with the same rule and the same first cap).
CapInterval caps_with_same_buckets(std::span<const int64_t> sizes, const CapOptions& options, const BucketPlan& plan);

// Whether some cap, with the rule and the first cap of `rule`, makes exactly this plan. O(tensors).
bool is_made_by_a_cap(const BucketPlan& plan, std::span<const int64_t> sizes, const CapOptions& rule);

// The cap in the interval that is a multiple of the largest power of two (26 MiB rather than 25.39 MiB), at most twice
// the lowest cap; if that takes more than four digits in MiB, the one with the fewest decimals (0.5005 rather than
// 0.5009765625). If the interval begins at 1 byte (every tensor travels alone), at least half the highest cap.
int64_t roundest_cap(const CapInterval& interval);

// PyTorch's own rule with a list: append, close bucket k once its size reaches caps_bytes[k]; the last cap is for all
// further buckets. Throws InputError when the list is empty, or a cap or a size is negative.
BucketPlan assign_buckets_by_cap_list(std::span<const int64_t> sizes, std::span<const int64_t> caps_bytes);

// DistributedDataParallel's argument of this name, which is in MiB, unlike every other cap here.
struct PyTorchCaps {
  // For each bucket a round cap, a whole number of bytes, that the bucket reaches with its last tensor.
  std::vector<double> bucket_cap_mb_list;
  // Whether PyTorch's rule makes exactly the plan's buckets from the list. It cannot where a bucket ends with tensors of
  // zero bytes.
  bool reproduces_plan = false;
};

// The caps that make the plan's buckets; its launch order has no counterpart in PyTorch.
PyTorchCaps pytorch_caps(const BucketPlan& plan, std::span<const int64_t> sizes);

// ---- The strategies by name, and how they differ.
//
//   const Strategy& strategy = find_strategy("bucketed");
//   strategy.launch;  // Launch::kWhenReady

// A strategy as data: which gradients travel together, when they are sent, and when the step waits for them.
enum class Grouping {
  kOneTensorPerBucket,
  kOneBucket,
  kCap,   // buckets by a cap (CapOptions)
  kPlan,  // an explicit BucketPlan
};

enum class Launch {
  kNever,          // no communication: the compute-only baseline
  kAfterBackward,  // one blocking all-reduce after another
  kWhenReady,      // during backward, in plan order
  kByTorch,        // by c10d::Reducer: the peer in `firkin bench step`; DataParallel refuses it
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
  // Each rank sums only its part of every bucket, and a ShardedOptimizer steps it (sharded_optimizer.h).
  bool shards = false;
};

inline constexpr std::array kStrategies = {
    Strategy{"none", Grouping::kOneTensorPerBucket, Launch::kNever, "no communication: the baseline of exposed communication"},
    Strategy{"naive", Grouping::kOneTensorPerBucket, Launch::kAfterBackward, "one blocking all-reduce per tensor after backward"},
    Strategy{"flat", Grouping::kOneBucket, Launch::kAfterBackward, "one all-reduce of everything after backward"},
    Strategy{"overlap", Grouping::kOneTensorPerBucket, Launch::kWhenReady, "one all-reduce per tensor, during backward"},
    Strategy{"bucketed", Grouping::kCap, Launch::kWhenReady, "one all-reduce per bucket, during backward"},
    Strategy{"planned", Grouping::kPlan, Launch::kWhenReady, "one all-reduce per bucket of an explicit plan, during backward"},
    Strategy{"ordered", Grouping::kCap, Launch::kWhenReady,
             "like bucketed or planned, but sends first what the next forward needs first, and waits there", Wait::kAtFirstUse},
    Strategy{"sharded", Grouping::kCap, Launch::kWhenReady,
             "each rank sums and steps its part of every bucket; parameters are gathered behind the next forward", Wait::kAtFirstUse, true},
    Strategy{"torch", Grouping::kCap, Launch::kByTorch, "c10d::Reducer, PyTorch's own engine, for comparison"},
};

// The strategy of this name. Throws InputError, which lists the names, for any other.
const Strategy& find_strategy(std::string_view name);

}  // namespace firkin
