#include "firkin/plan/uniform_cap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "firkin/base/error.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Calls `visit` with the plan of each cap from 1 on, each larger than the one before by at least the factor 1 + step, once for each
// distinct plan that respects the limit; false when that takes more than `effort`.
template <typename Visit>
bool for_each_plan(const TensorProfile& profile, CapOptions options, const SearchOptions& search, double step, int64_t effort,
                   const Visit& visit) {
  const auto respects_limit = [&](const BucketPlan& plan) {
    const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
    for (size_t k = 0; k < bytes.size(); ++k) {
      if (plan.buckets[k].count > 1 && bytes[k] > search.largest_bucket_bytes) return false;
    }
    return true;
  };
  int64_t buckets_made = 0;
  for (int64_t cap = 1;;) {
    options.cap_bytes = cap;
    BucketPlan plan = assign_buckets(profile.bytes, options);
    const CapInterval interval = caps_with_same_buckets(profile.bytes, options, plan);
    buckets_made += static_cast<int64_t>(plan.buckets.size());
    if (buckets_made > effort) return false;
    if (respects_limit(plan)) visit(interval, std::move(plan));
    if (interval.highest_cap_bytes == kNoLimit) return true;
    const double next = static_cast<double>(cap) * (1 + step);
    if (next >= static_cast<double>(kNoLimit)) return true;
    cap = std::max(interval.highest_cap_bytes + 1, static_cast<int64_t>(next));
  }
}

// The buckets of all caps, each larger by this factor less one than the one before, are about `effort` / 2.
double thinning_step(const TensorProfile& profile, int64_t effort) {
  return 2 * static_cast<double>(profile.bytes.size()) / static_cast<double>(effort);
}

[[noreturn]] void fail_limit(const SearchOptions& search) {
  throw InputError(fmt::format("no uniform cap keeps all buckets of several tensors within {} bytes", search.largest_bucket_bytes));
}

}  // namespace

CapInterval caps_with_same_buckets(std::span<const int64_t> sizes, const CapOptions& options, const BucketPlan& plan) {
  CapInterval interval = {1, kNoLimit};
  const std::vector<int64_t> bytes = bucket_bytes(plan, sizes);
  for (size_t k = options.first_cap_bytes ? 1 : 0; k < bytes.size(); ++k) {
    const auto first = static_cast<size_t>(plan.buckets[k].first);
    const auto end = first + static_cast<size_t>(plan.buckets[k].count);
    const bool last_bucket = k + 1 == bytes.size();
    if (options.rule == CapRule::kCloseWhenFull) {
      // It was not full before its last tensor, and is full with it.
      interval.lowest_cap_bytes = std::max(interval.lowest_cap_bytes, bytes[k] - sizes[end - 1] + 1);
      if (!last_bucket) interval.highest_cap_bytes = std::min(interval.highest_cap_bytes, bytes[k]);
      continue;
    }
    // It has room for what it holds, unless that is a single tensor, and none for the next one.
    const auto not_empty = std::count_if(sizes.begin() + static_cast<std::ptrdiff_t>(first),
                                         sizes.begin() + static_cast<std::ptrdiff_t>(end), [](int64_t size) { return size > 0; });
    if (not_empty > 1) interval.lowest_cap_bytes = std::max(interval.lowest_cap_bytes, bytes[k]);
    if (!last_bucket) interval.highest_cap_bytes = std::min(interval.highest_cap_bytes, bytes[k] + sizes[end] - 1);
  }
  return interval;
}

int64_t roundest_cap(const CapInterval& interval) {
  constexpr int kLargestPower = 62;
  const bool all_alone = interval.lowest_cap_bytes == 1 && interval.highest_cap_bytes != kNoLimit;  // only the upper end says something
  const int64_t low = all_alone ? (interval.highest_cap_bytes + 1) / 2 : interval.lowest_cap_bytes;
  const int64_t high = low > kNoLimit / 2 ? interval.highest_cap_bytes : std::min(interval.highest_cap_bytes, 2 * low);
  for (int power = kLargestPower; power > 0; --power) {
    const int64_t unit = int64_t{1} << power;
    const int64_t beyond = low % unit == 0 ? 0 : unit - low % unit;  // from low to the next multiple
    if (beyond <= high - low) return low + beyond;
  }
  return low;
}

DistinctPlans distinct_plans(const TensorProfile& profile, const CapOptions& options, const SearchOptions& search, int64_t effort) {
  check_profile(profile);
  DistinctPlans result;
  const auto keep = [&](const CapInterval& caps, BucketPlan plan) { result.plans.push_back({caps, std::move(plan)}); };
  result.exhaustive = for_each_plan(profile, options, search, 0, effort, keep);
  if (!result.exhaustive) {
    result.plans.clear();
    for_each_plan(profile, options, search, thinning_step(profile, effort), kNoLimit, keep);
  }
  if (result.plans.empty()) fail_limit(search);
  return result;
}

UniformCap find_best_uniform_cap(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                 const SearchOptions& search, int64_t effort) {
  check_profile(profile);
  check_options(search.simulation);
  struct Candidate {
    double end_s = 0;
    size_t buckets = 0;
    CapInterval caps;
  };
  std::vector<Candidate> candidates;
  Simulator simulator(profile, costs, {.simulation = search.simulation});
  double best_s = std::numeric_limits<double>::infinity();
  const auto consider = [&](const CapInterval& caps, const BucketPlan& plan) {
    const double end_s = simulator.end_s(plan.buckets, best_s * (1 + search.tolerance));
    best_s = std::min(best_s, end_s);
    candidates.push_back({end_s, plan.buckets.size(), caps});
  };
  UniformCap result;
  result.exhaustive = for_each_plan(profile, options, search, 0, effort, consider);
  if (!result.exhaustive) for_each_plan(profile, options, search, thinning_step(profile, effort), kNoLimit, consider);
  if (candidates.empty()) fail_limit(search);
  const double limit = best_s * (1 + search.tolerance);
  const auto rank = [&](const Candidate& c) { return std::tuple(c.end_s > limit, c.buckets, c.end_s); };
  const CapInterval caps = std::ranges::min_element(candidates, {}, rank)->caps;
  result.lowest_cap_bytes = caps.lowest_cap_bytes;
  result.highest_cap_bytes = caps.highest_cap_bytes;
  result.cap_bytes = roundest_cap(caps);
  CapOptions chosen = options;
  chosen.cap_bytes = result.cap_bytes;
  result.plan = assign_buckets(profile.bytes, chosen);
  result.timeline = simulate(profile, result.plan, costs, search.simulation);
  return result;
}

}  // namespace firkin
