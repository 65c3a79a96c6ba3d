// The two rules in use for filling gradient buckets up to a cap.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "firkin/base/units.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

enum class CapRule {
  kAtMost,         // start a new bucket when the next tensor would exceed the cap (CS336 hand-out)
  kCloseWhenFull,  // append, then close once the size reaches the cap (PyTorch)
};

std::string name_of(CapRule rule);  // "at-most", "close-when-full"

struct CapOptions {
  int64_t cap_bytes = 25 * kMiB;  // PyTorch's default
  CapRule rule = CapRule::kCloseWhenFull;
  std::optional<int64_t> first_cap_bytes = std::nullopt;  // cap of the first bucket, so that communication starts early (PyTorch: 1 MiB)
};

// Groups tensors, given in gradient-ready order, into buckets.
//
// sizes: bytes per gradient; zero is allowed and never closes a bucket.
// Returns a plan that covers every tensor exactly once, in order. A tensor larger than the cap gets a bucket of its own
// under kAtMost. O(n). Throws InputError if a cap is not positive or a size is negative.
BucketPlan assign_buckets(std::span<const int64_t> sizes, const CapOptions& options);

}  // namespace firkin
