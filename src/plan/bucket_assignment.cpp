#include "firkin/plan/bucket_assignment.h"

#include <fmt/format.h>

#include <limits>

#include "firkin/base/error.h"

namespace firkin {
namespace {

void check_options(std::span<const int64_t> sizes, const CapOptions& options) {
  if (options.cap_bytes <= 0) throw InputError(fmt::format("the bucket cap is {} bytes; expected at least 1", options.cap_bytes));
  if (options.first_cap_bytes && *options.first_cap_bytes <= 0) {
    throw InputError(fmt::format("the first bucket's cap is {} bytes; expected at least 1", *options.first_cap_bytes));
  }
  int64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw InputError(fmt::format("gradient {} has {} bytes; expected at least 0", i, sizes[i]));
    if (sizes[i] > std::numeric_limits<int64_t>::max() - total) {
      throw InputError(fmt::format("gradient {} takes the total beyond {} bytes", i, std::numeric_limits<int64_t>::max()));
    }
    total += sizes[i];
  }
}

}  // namespace

std::string name_of(CapRule rule) {
  return rule == CapRule::kAtMost ? "at-most" : "close-when-full";
}

BucketPlan assign_buckets(std::span<const int64_t> sizes, const CapOptions& options) {
  check_options(sizes, options);
  BucketPlan plan;
  Bucket open;
  int64_t open_bytes = 0;
  const auto close = [&] {
    plan.buckets.push_back(open);
    open = {.first = open.first + open.count, .count = 0};
    open_bytes = 0;
  };
  for (const int64_t size : sizes) {
    const int64_t cap = plan.buckets.empty() ? options.first_cap_bytes.value_or(options.cap_bytes) : options.cap_bytes;
    if (options.rule == CapRule::kAtMost && open_bytes > 0 && size > 0 && size > cap - open_bytes) close();
    ++open.count;
    open_bytes += size;
    if (options.rule == CapRule::kCloseWhenFull && open_bytes >= cap) close();
  }
  if (open.count > 0) close();
  return plan;
}

}  // namespace firkin
