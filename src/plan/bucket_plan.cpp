#include "firkin/plan/bucket_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>

#include "firkin/base/error.h"

namespace firkin {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

void check_caps(std::span<const int64_t> sizes, const CapOptions& options) {
  if (options.cap_bytes <= 0) throw InputError(fmt::format("the bucket cap is {} bytes; expected at least 1", options.cap_bytes));
  if (options.first_cap_bytes && *options.first_cap_bytes <= 0) {
    throw InputError(fmt::format("the first bucket's cap is {} bytes; expected at least 1", *options.first_cap_bytes));
  }
  int64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < 0) throw InputError(fmt::format("gradient {} has {} bytes; expected at least 0", i, sizes[i]));
    if (sizes[i] > kNoLimit - total) throw InputError(fmt::format("gradient {} brings the total above {} bytes", i, kNoLimit));
    total += sizes[i];
  }
}

// cap_of(k) is the cap of bucket k.
template <typename CapOf>
BucketPlan filled_buckets(std::span<const int64_t> sizes, CapRule rule, const CapOf& cap_of) {
  BucketPlan plan;
  Bucket open;
  int64_t open_bytes = 0;
  const auto close = [&] {
    plan.buckets.push_back(open);
    open = {.first = open.first + open.count, .count = 0};
    open_bytes = 0;
  };
  for (const int64_t size : sizes) {
    const int64_t cap = cap_of(plan.buckets.size());
    if (rule == CapRule::kAtMost && open_bytes > 0 && size > 0 && size > cap - open_bytes) close();
    ++open.count;
    open_bytes += size;
    if (rule == CapRule::kCloseWhenFull && open_bytes >= cap) close();
  }
  if (open.count > 0) close();
  return plan;
}

int64_t multiple_of_largest_power_of_two(int64_t low, int64_t high) {
  constexpr int kLargestPower = 62;
  for (int power = kLargestPower; power > 0; --power) {
    const int64_t unit = int64_t{1} << power;
    const int64_t beyond = low % unit == 0 ? 0 : unit - low % unit;  // from low to the next multiple
    if (beyond <= high - low) return low + beyond;
  }
  return low;
}

// The cap from `low` to `high` with the fewest decimals in MiB, a multiple of 5 if possible. PyTorch rounds its bytes
// down.
std::optional<int64_t> shortest_in_mib(int64_t low, int64_t high) {
  constexpr double kMostPerMib = 1e6;
  for (double per_mib = 1; per_mib <= kMostPerMib; per_mib *= 10) {
    for (const double step : {5.0, 1.0}) {
      const double bytes = std::ceil(mib(low) * per_mib / step) * step / per_mib * static_cast<double>(kMiB);
      if (std::floor(bytes) >= static_cast<double>(low) && std::llround(bytes) <= high) return std::llround(bytes);
    }
  }
  return std::nullopt;
}

}  // namespace

BucketPlan plan_of_counts(std::span<const int64_t> counts) {
  BucketPlan plan;
  int64_t first = 0;
  for (const int64_t count : counts) {
    plan.buckets.push_back({first, count});
    first += count;
  }
  return plan;
}

BucketPlan one_tensor_per_bucket(size_t tensors) {
  return plan_of_counts(std::vector<int64_t>(tensors, 1));
}

BucketPlan one_bucket(size_t tensors) {
  return tensors == 0 ? BucketPlan() : BucketPlan{{{0, static_cast<int64_t>(tensors)}}, {}};
}

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

std::string name_of(CapRule rule) {
  return rule == CapRule::kAtMost ? "at-most" : "close-when-full";
}

CapOptions with_cap(CapOptions rule, int64_t cap_bytes) {
  rule.cap_bytes = cap_bytes;
  return rule;
}

BucketPlan assign_buckets(std::span<const int64_t> sizes, const CapOptions& options) {
  check_caps(sizes, options);
  const int64_t first_cap = options.first_cap_bytes.value_or(options.cap_bytes);
  return filled_buckets(sizes, options.rule, [&](size_t bucket) { return bucket == 0 ? first_cap : options.cap_bytes; });
}

CapInterval caps_with_same_buckets(std::span<const int64_t> sizes, const CapOptions& options, const BucketPlan& plan) {
  CapInterval interval = {1, kNoLimit};
  const std::vector<int64_t> bytes = bucket_bytes(plan, sizes);
  for (size_t k = options.first_cap_bytes ? 1 : 0; k < bytes.size(); ++k) {
    const auto first = static_cast<size_t>(plan.buckets[k].first);
    const auto end = first + static_cast<size_t>(plan.buckets[k].count);
    const bool last_bucket = k + 1 == bytes.size();
    if (options.rule == CapRule::kCloseWhenFull) {
      interval.lowest_cap_bytes = std::max(interval.lowest_cap_bytes, bytes[k] - sizes[end - 1] + 1);
      if (!last_bucket) interval.highest_cap_bytes = std::min(interval.highest_cap_bytes, bytes[k]);
      continue;
    }
    // Room for what the bucket holds, unless that is a single tensor, and none for the next tensor.
    const auto not_empty = std::count_if(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                                         sizes.begin() + static_cast<std::ptrdiff_t>(end), [](int64_t size) { return size > 0; });
    if (not_empty > 1) interval.lowest_cap_bytes = std::max(interval.lowest_cap_bytes, bytes[k]);
    if (!last_bucket) interval.highest_cap_bytes = std::min(interval.highest_cap_bytes, bytes[k] + sizes[end] - 1);
  }
  return interval;
}

bool is_made_by_a_cap(const BucketPlan& plan, std::span<const int64_t> sizes, const CapOptions& rule) {
  // If a cap makes this plan, every cap of the interval does.
  return assign_buckets(sizes, with_cap(rule, caps_with_same_buckets(sizes, rule, plan).lowest_cap_bytes)) == plan;
}

int64_t roundest_cap(const CapInterval& interval) {
  constexpr int64_t kSmallestTyped = 16 * kKiB;  // below this, no fraction of a MiB is short
  // Every tensor travels alone: only the upper end matters.
  const bool all_alone = interval.lowest_cap_bytes == 1 && interval.highest_cap_bytes != kNoLimit;
  const int64_t low = all_alone ? (interval.highest_cap_bytes + 1) / 2 : interval.lowest_cap_bytes;
  const int64_t high = low > kNoLimit / 2 ? interval.highest_cap_bytes : std::min(interval.highest_cap_bytes, 2 * low);
  const int64_t cap = multiple_of_largest_power_of_two(low, high);
  const bool is_short = std::stod(fmt::format("{:.4g}", mib(cap))) == mib(cap);
  return low < kSmallestTyped || is_short ? cap : shortest_in_mib(low, high).value_or(cap);
}

BucketPlan assign_buckets_by_cap_list(std::span<const int64_t> sizes, std::span<const int64_t> caps_bytes) {
  if (caps_bytes.empty()) throw InputError("the list of bucket caps is empty; expected at least one");
  for (const int64_t cap : caps_bytes) {
    if (cap < 0) throw InputError(fmt::format("a bucket cap is {} bytes; expected at least 0", cap));
  }
  for (const int64_t size : sizes) {
    if (size < 0) throw InputError(fmt::format("a gradient has {} bytes; expected at least 0", size));
  }
  const auto cap_of = [&](size_t bucket) { return caps_bytes[std::min(bucket, caps_bytes.size() - 1)]; };
  return filled_buckets(sizes, CapRule::kCloseWhenFull, cap_of);
}

PyTorchCaps pytorch_caps(const BucketPlan& plan, std::span<const int64_t> sizes) {
  PyTorchCaps caps;
  std::vector<int64_t> caps_bytes;
  const std::vector<int64_t> bytes_of = bucket_bytes(plan, sizes);
  for (size_t k = 0; k < bytes_of.size(); ++k) {
    // A round cap, within a sixteenth of the bytes, that the bucket reaches only with its last tensor.
    const int64_t bytes = bytes_of[k];
    const int64_t last_bytes = sizes[static_cast<size_t>(plan.buckets[k].first + plan.buckets[k].count - 1)];
    const int64_t lowest = std::max(bytes - last_bytes + 1, bytes - bytes / 16);
    const bool none_closes = lowest > bytes || lowest < 1;  // an empty tensor is last
    caps_bytes.push_back(none_closes ? bytes : roundest_cap({lowest, bytes}));
    // Exact, because a MiB is a power of two.
    caps.bucket_cap_mb_list.push_back(mib(caps_bytes.back()));
  }
  caps.reproduces_plan = !caps_bytes.empty() && assign_buckets_by_cap_list(sizes, caps_bytes).buckets == plan.buckets;
  return caps;
}

const Strategy& find_strategy(std::string_view name) {
  const auto found = std::ranges::find(kStrategies, name, &Strategy::name);
  if (found != kStrategies.end()) return *found;
  throw InputError(
      fmt::format("strategy {}: expected one of {}", name, fmt::join(kStrategies | std::views::transform(&Strategy::name), ", ")));
}

}  // namespace firkin
