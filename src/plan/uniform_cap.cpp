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

// The search over caps from the smallest up, and the best of what it has seen.
class CapSearch {
 public:
  CapSearch(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options, const SearchOptions& search)
      : profile_(profile), options_(options), search_(search), evaluator_(profile, costs, search.simulation) {}

  // Visits caps from 1 on, each larger than the one before by at least the factor 1 + step; false when that takes more than `effort`.
  bool visit(double step, int64_t effort) {
    int64_t buckets_simulated = 0;
    for (int64_t cap = 1;;) {
      options_.cap_bytes = cap;
      BucketPlan plan = assign_buckets(profile_.bytes, options_);
      const CapInterval interval = caps_with_same_buckets(profile_.bytes, options_, plan);
      buckets_simulated += static_cast<int64_t>(plan.buckets.size());
      if (buckets_simulated > effort) return false;
      ++tried_;
      if (respects_limit(plan)) consider(interval, std::move(plan));
      if (interval.highest_cap_bytes == kNoLimit) return true;
      const double next = static_cast<double>(cap) * (1 + step);
      if (next >= static_cast<double>(kNoLimit)) return true;
      cap = std::max(interval.highest_cap_bytes + 1, static_cast<int64_t>(next));
    }
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

  bool respects_limit(const BucketPlan& plan) const {
    return std::all_of(plan.buckets.begin(), plan.buckets.end(),
                       [&](const Bucket& bucket) { return bucket.count == 1 || evaluator_.bytes(bucket) <= search_.largest_bucket_bytes; });
  }

  void consider(const CapInterval& interval, BucketPlan plan) {
    const double end_s = evaluator_.end_s(plan.buckets, limit_s());
    if (end_s > limit_s()) return;
    best_s_ = std::min(best_s_, end_s);
    std::erase_if(candidates_, [&](const Candidate& c) { return c.end_s > limit_s() || better(end_s, plan, c); });
    const bool dominated = std::any_of(candidates_.begin(), candidates_.end(), [&](const Candidate& c) {
      return c.end_s <= end_s && c.plan.buckets.size() <= plan.buckets.size();
    });
    if (!dominated) candidates_.push_back({end_s, interval, std::move(plan)});
  }

  static bool better(double end_s, const BucketPlan& plan, const Candidate& c) {
    return end_s <= c.end_s && plan.buckets.size() < c.plan.buckets.size();
  }

  const Candidate& choice() const {
    return *std::min_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.plan.buckets.size(), a.end_s) < std::pair(b.plan.buckets.size(), b.end_s);
    });
  }

  const TensorProfile& profile_;
  CapOptions options_;
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
  const int64_t low = interval.lowest_cap_bytes;
  const int64_t high = low > kNoLimit / 2 ? interval.highest_cap_bytes : std::min(interval.highest_cap_bytes, 2 * low);
  for (int power = kLargestPower; power > 0; --power) {
    const int64_t unit = int64_t{1} << power;
    const int64_t beyond = low % unit == 0 ? 0 : unit - low % unit;  // from low to the next multiple
    if (beyond <= high - low) return low + beyond;
  }
  return low;
}

UniformCap find_best_uniform_cap(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                 const SearchOptions& search, int64_t effort) {
  check_profile(profile);
  check_options(search.simulation);
  UniformCap result;
  CapSearch exhaustive(profile, costs, options, search);
  CapSearch thinned(profile, costs, options, search);
  result.exhaustive = exhaustive.visit(0, effort);
  if (!result.exhaustive) {
    // The buckets of all caps, one a step apart, are about L / step.
    thinned.visit(2 * static_cast<double>(profile.bytes.size()) / static_cast<double>(effort), kNoLimit);
  }
  const CapSearch& best = result.exhaustive ? exhaustive : thinned;
  if (!best.found()) {
    throw InputError(fmt::format("no uniform cap keeps all buckets of several tensors within {} bytes", search.largest_bucket_bytes));
  }
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
