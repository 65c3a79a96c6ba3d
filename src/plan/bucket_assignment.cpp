#include "firkin/plan/bucket_assignment.h"

#include <fmt/format.h>

#include "firkin/base/error.h"

namespace firkin {

BucketPlan assign_buckets(std::span<const int64_t> sizes, const CapOptions& options) {
  const int64_t first_cap = options.first_cap_bytes.value_or(options.cap_bytes);
  if (options.cap_bytes <= 0 || first_cap <= 0) throw InputError("bucket cap: expected more than 0 bytes");
  BucketPlan plan;
  Bucket open;
  int64_t open_bytes = 0;
  const auto close = [&] {
    plan.buckets.push_back(open);
    open = {open.first + open.count, 0};
    open_bytes = 0;
  };
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw InputError(fmt::format("tensor {}: {} bytes; expected 0 or more", i, sizes[i]));
    const int64_t cap = plan.buckets.empty() ? first_cap : options.cap_bytes;
    if (options.rule == CapRule::kAtMost && sizes[i] > 0 && open_bytes > 0 && open_bytes + sizes[i] > cap) close();
    ++open.count;
    open_bytes += sizes[i];
    if (options.rule == CapRule::kCloseWhenFull && sizes[i] > 0 && open_bytes >= cap) close();
  }
  if (open.count > 0) close();
  return plan;
}

}  // namespace firkin
