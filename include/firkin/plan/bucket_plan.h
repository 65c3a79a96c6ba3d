// A bucket plan: which gradients travel together, and in which order the buckets are launched.
//
//   BucketPlan plan = assign_buckets(sizes, {.cap_bytes = 25 * kMiB});
//   plan.buckets[0];  // {first: 0, count: 3}: tensors 0, 1, 2 in gradient-ready order
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

// Throws InputError unless the buckets are non-empty, contiguous and cover tensors 0..tensor_count-1 in order, and launch_order
// is empty or a permutation.
void check_plan(const BucketPlan& plan, int64_t tensor_count);

// Bytes of each bucket. `sizes`: bytes per gradient in gradient-ready order.
std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes);

}  // namespace firkin
