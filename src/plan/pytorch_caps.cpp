#include "firkin/plan/pytorch_caps.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {

BucketPlan assign_buckets_by_cap_list(std::span<const int64_t> sizes, std::span<const int64_t> caps_bytes) {
  if (caps_bytes.empty()) throw InputError("the list of bucket caps is empty; expected at least one");
  for (const int64_t cap : caps_bytes) {
    if (cap < 0) throw InputError(fmt::format("a bucket cap is {} bytes; expected at least 0", cap));
  }
  BucketPlan plan;
  Bucket open;
  int64_t open_bytes = 0;
  for (const int64_t size : sizes) {
    if (size < 0) throw InputError(fmt::format("a gradient has {} bytes; expected at least 0", size));
    ++open.count;
    open_bytes += size;
    if (open_bytes < caps_bytes[std::min(plan.buckets.size(), caps_bytes.size() - 1)]) continue;
    plan.buckets.push_back(open);
    open = {.first = open.first + open.count, .count = 0};
    open_bytes = 0;
  }
  if (open.count > 0) plan.buckets.push_back(open);
  return plan;
}

PyTorchCaps pytorch_caps(const BucketPlan& plan, std::span<const int64_t> sizes) {
  PyTorchCaps caps;
  std::vector<int64_t> caps_bytes;
  for (const int64_t bytes : bucket_bytes(plan, sizes)) {
    caps.mib.push_back(static_cast<double>(bytes) / static_cast<double>(kMiB));  // exact: MiB is a power of two
    caps_bytes.push_back(static_cast<int64_t>(caps.mib.back() * static_cast<double>(kMiB)));
  }
  caps.reproduces_plan = !caps_bytes.empty() && assign_buckets_by_cap_list(sizes, caps_bytes).buckets == plan.buckets;
  return caps;
}

}  // namespace firkin
