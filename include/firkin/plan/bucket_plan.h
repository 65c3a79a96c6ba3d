// A bucket plan: which gradients travel together, and in which order the buckets are launched.
//
//   BucketPlan plan = assign_buckets(sizes, {.cap_bytes = 25 * kMiB});
//   plan.buckets[0];  // {first: 0, count: 3}: tensors 0, 1, 2 in gradient-ready order
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace firkin {

// A contiguous run of tensors in gradient-ready order, or a part of one large tensor.
//
// With parts > 1, count is 1 and the bucket holds part `part` of tensor `first`: of its N elements, those from part_begin(N, part, parts)
// up to part_begin(N, part + 1, parts).
struct Bucket {
  int64_t first = 0;
  int64_t count = 0;
  int64_t part = 0;
  int64_t parts = 1;

  bool operator==(const Bucket&) const = default;
};

inline constexpr int64_t kMostParts = 65536;  // of one tensor

// total * part / parts, rounded down, for 0 <= part <= parts <= kMostParts and any total of at least 0.
int64_t part_begin(int64_t total, int64_t part, int64_t parts);

struct BucketPlan {
  std::vector<Bucket> buckets;             // in gradient-ready order; together they hold every tensor exactly once
  std::vector<int64_t> launch_order = {};  // a permutation of the buckets' indices; empty means gradient-ready order

  bool operator==(const BucketPlan&) const = default;
};

// Throws InputError unless the buckets are non-empty, contiguous and cover tensors 0..tensor_count-1 in order, the parts of a split tensor
// are all there, one after another, and launch_order is empty or a permutation.
void check_plan(const BucketPlan& plan, int64_t tensor_count);

// Whether a tensor is split over several buckets.
bool has_parts(const BucketPlan& plan);

// Bytes of each bucket. `sizes`: bytes per gradient in gradient-ready order. A split tensor's bytes are divided as its elements are: a part
// is right to within one element. The plan must have passed check_plan.
std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes);

}  // namespace firkin
