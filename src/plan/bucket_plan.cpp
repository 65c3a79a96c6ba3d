#include "firkin/plan/bucket_plan.h"

#include <fmt/format.h>

#include <numeric>

#include "firkin/base/error.h"

namespace firkin {

void check_plan(const BucketPlan& plan, int64_t tensor_count) {
  int64_t next = 0;
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const Bucket& bucket = plan.buckets[k];
    if (bucket.first != next) {
      throw InputError(fmt::format("bucket {} starts at tensor {}; expected {}", k, bucket.first, next));
    }
    if (bucket.count <= 0 || bucket.count > tensor_count - next) {
      throw InputError(fmt::format("bucket {} holds {} tensors; expected 1 to {}", k, bucket.count, tensor_count - next));
    }
    next += bucket.count;
  }
  if (next != tensor_count) throw InputError(fmt::format("the buckets hold {} tensors; expected {}", next, tensor_count));

  if (plan.launch_order.empty()) return;
  const size_t bucket_count = plan.buckets.size();
  if (plan.launch_order.size() != bucket_count) {
    throw InputError(fmt::format("the launch order names {} buckets; expected {}", plan.launch_order.size(), bucket_count));
  }
  std::vector<bool> launched(bucket_count, false);
  for (const int64_t k : plan.launch_order) {
    if (k < 0 || k >= static_cast<int64_t>(bucket_count) || launched[static_cast<size_t>(k)]) {
      throw InputError(fmt::format("the launch order names bucket {}; expected each of 0 to {} once", k, bucket_count - 1));
    }
    launched[static_cast<size_t>(k)] = true;
  }
}

std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes) {
  std::vector<int64_t> bytes;
  bytes.reserve(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    const auto tensors = sizes.subspan(static_cast<size_t>(bucket.first), static_cast<size_t>(bucket.count));
    bytes.push_back(std::accumulate(tensors.begin(), tensors.end(), int64_t{0}));
  }
  return bytes;
}

}  // namespace firkin
