#include "firkin/plan/pytorch_caps.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/uniform_cap.h"

namespace firkin {
namespace {

// A round number that a bucket of `bytes` reaches with its last tensor, of `last_bytes`, and not before; within a sixteenth of `bytes`.
int64_t cap_that_closes(int64_t bytes, int64_t last_bytes) {
  const int64_t lowest = std::max(bytes - last_bytes + 1, bytes - bytes / 16);
  if (lowest > bytes || lowest < 1) return bytes;  // an empty tensor is last: nothing closes the bucket there
  return roundest_cap({lowest, bytes});
}

}  // namespace

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
  if (has_parts(plan)) throw InputError("the plan splits a tensor; expected whole tensors: PyTorch's caps cannot split one");
  PyTorchCaps caps;
  std::vector<int64_t> caps_bytes;
  const std::vector<int64_t> bytes_of = bucket_bytes(plan, sizes);
  for (size_t k = 0; k < bytes_of.size(); ++k) {
    const Bucket& bucket = plan.buckets[k];
    caps_bytes.push_back(cap_that_closes(bytes_of[k], sizes[static_cast<size_t>(bucket.first + bucket.count - 1)]));
    caps.mib.push_back(static_cast<double>(caps_bytes.back()) / static_cast<double>(kMiB));  // exact: MiB is a power of two
  }
  caps.reproduces_plan = !caps_bytes.empty() && assign_buckets_by_cap_list(sizes, caps_bytes).buckets == plan.buckets;
  return caps;
}

}  // namespace firkin
