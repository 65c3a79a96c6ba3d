#include "firkin/plan/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "firkin/base/error.h"

namespace firkin {

void check_plan(const BucketPlan& plan, int64_t tensor_count) {
  int64_t next = 0;
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    if (bucket.first != next || bucket.count < 1) {
      throw InputError(fmt::format("bucket plan: bucket {} holds {} tensors from {}; expected at least one, from {}", b, bucket.count,
                                   bucket.first, next));
    }
    next += bucket.count;
  }
  if (next != tensor_count) throw InputError(fmt::format("bucket plan: it covers {} tensors; expected {}", next, tensor_count));
  if (plan.launch_order.empty()) return;
  std::vector<int64_t> ready_order(plan.buckets.size());
  std::iota(ready_order.begin(), ready_order.end(), 0);
  if (std::ranges::is_permutation(plan.launch_order, ready_order)) return;
  throw InputError(fmt::format("bucket plan: the launch order is no permutation of the {} buckets", plan.buckets.size()));
}

std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes) {
  std::vector<int64_t> bytes;
  for (const Bucket& bucket : plan.buckets) {
    const auto first = sizes.begin() + bucket.first;
    bytes.push_back(std::accumulate(first, first + bucket.count, int64_t{0}));
  }
  return bytes;
}

}  // namespace firkin
