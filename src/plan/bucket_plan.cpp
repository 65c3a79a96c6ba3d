#include "firkin/plan/bucket_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// `part`: the part of tensor bucket.first that comes next.
void check_parts(const Bucket& bucket, size_t k, int64_t part, int64_t parts) {
  if (bucket.parts < 1 || bucket.parts > kMostParts) {
    throw InputError(fmt::format("bucket {} is one of {} parts; expected 1 to {}", k, bucket.parts, kMostParts));
  }
  if (bucket.parts > 1 && bucket.count != 1) {
    throw InputError(fmt::format("bucket {} is a part of {} tensors; expected of one", k, bucket.count));
  }
  if (bucket.part != part || (part > 0 && bucket.parts != parts)) {
    throw InputError(fmt::format("bucket {} is part {} of {} of tensor {}; expected part {} of {}", k, bucket.part, bucket.parts,
                                 bucket.first, part, part > 0 ? parts : bucket.parts));
  }
}

}  // namespace

int64_t part_begin(int64_t total, int64_t part, int64_t parts) {
  return total / parts * part + total % parts * part / parts;  // total * part might overflow
}

void check_plan(const BucketPlan& plan, int64_t tensor_count) {
  int64_t next = 0;
  int64_t part = 0;   // of tensor `next`
  int64_t parts = 1;  // of which it is split into as many
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const Bucket& bucket = plan.buckets[k];
    if (bucket.first != next) {
      throw InputError(fmt::format("bucket {} starts at tensor {}; expected {}", k, bucket.first, next));
    }
    if (bucket.count <= 0 || bucket.count > tensor_count - next) {
      throw InputError(fmt::format("bucket {} holds {} tensors; expected 1 to {}", k, bucket.count, tensor_count - next));
    }
    check_parts(bucket, k, part, parts);
    parts = bucket.parts;
    if (++part < parts) continue;
    part = 0;
    next += bucket.count;
  }
  if (part > 0) throw InputError(fmt::format("tensor {} has {} of its {} parts; expected all", next, part, parts));
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

bool has_parts(const BucketPlan& plan) {
  return std::ranges::any_of(plan.buckets, [](const Bucket& bucket) { return bucket.parts > 1; });
}

std::vector<int64_t> bucket_bytes(const BucketPlan& plan, std::span<const int64_t> sizes) {
  std::vector<int64_t> bytes;
  bytes.reserve(plan.buckets.size());
  for (const Bucket& bucket : plan.buckets) {
    const auto tensors = sizes.subspan(static_cast<size_t>(bucket.first), static_cast<size_t>(bucket.count));
    const int64_t total = std::accumulate(tensors.begin(), tensors.end(), int64_t{0});
    bytes.push_back(part_begin(total, bucket.part + 1, bucket.parts) - part_begin(total, bucket.part, bucket.parts));
  }
  return bytes;
}

}  // namespace firkin
