#include "firkin/plan/uniform_cap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "firkin/base/error.h"
#include "plan_evaluator.h"

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

// The best of the plans it is shown.
class BestPlan {
 public:
  BestPlan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& search)
      : search_(search), evaluator_(profile, costs, search.simulation) {}

  void consider(const CapInterval& interval, BucketPlan plan) {
    ++tried_;
    const double end_s = evaluator_.end_s(plan.buckets, limit_s());
    if (end_s > limit_s()) return;
    best_s_ = std::min(best_s_, end_s);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.end_s > limit_s() || better(end_s, plan, c); });
    const bool dominated = std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& c) {
      return c.end_s <= end_s && c.plan.buckets.size() <= plan.buckets.size();
    });
    if (!dominated) candidates_.push_back({end_s, interval, std::move(plan)});
  }

  bool found() const { return best_s_ < std::numeric_limits<double>::infinity(); }
  int64_t tried() const { return tried_; }

  // Of the plans within the tolerance of the best, one with the fewest buckets; of those, the fastest.
  const BucketPlan& plan() const { return choice().plan; }
  CapInterval interval() const { return choice().interval; }

 private:
  struct Candidate {
    double end_s = 0;
    CapInterval interval;
    BucketPlan plan;
  };

  double limit_s() const { return best_s_ * (1 + search_.tolerance); }

  static bool better(double end_s, const BucketPlan& plan, const Candidate& c) {
    return end_s <= c.end_s && plan.buckets.size() < c.plan.buckets.size();
  }

  const Candidate& choice() const {
    return *std::min_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.plan.buckets.size(), a.end_s) < std::pair(b.plan.buckets.size(), b.end_s);
    });
  }

  const SearchOptions& search_;
  PlanEvaluator evaluator_;
  double best_s_ = std::numeric_limits<double>::infinity();
  std::vector<Candidate> candidates_;
  int64_t tried_ = 0;
};

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
  BestPlan best(profile, costs, search);
  const auto consider = [&](const CapInterval& caps, BucketPlan plan) { best.consider(caps, std::move(plan)); };
  UniformCap result;
  result.exhaustive = for_each_plan(profile, options, search, 0, effort, consider);
  if (!result.exhaustive) for_each_plan(profile, options, search, thinning_step(profile, effort), kNoLimit, consider);
  if (!best.found()) fail_limit(search);
  const CapInterval interval = best.interval();
  result.lowest_cap_bytes = interval.lowest_cap_bytes;
  result.highest_cap_bytes = interval.highest_cap_bytes;
  result.cap_bytes = roundest_cap(interval);
  result.partitions_tried = best.tried();
  result.plan = best.plan();
  result.timeline = simulate(profile, result.plan, costs, search.simulation);
  return result;
}

}  // namespace firkin
