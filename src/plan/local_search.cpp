#include "local_search.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "exact_search.h"
#include "firkin/base/error.h"
#include "firkin/plan/uniform_cap.h"
#include "plan_evaluator.h"

namespace firkin {
namespace {

using Buckets = std::vector<Bucket>;

class LocalSearch {
 public:
  LocalSearch(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options)
      : options_(options), evaluator_(profile, costs, options.simulation) {}

  double end_s(const Buckets& buckets) { return evaluator_.end_s(buckets, std::numeric_limits<double>::infinity()); }

  // Moves to a better plan until none of the moves improves, then merges what may be merged within the tolerance.
  Buckets improve(Buckets buckets) {
    double best = end_s(buckets);
    while (left_ > 0 && improve_once(buckets, best)) {
    }
    const double limit = best * (1 + options_.tolerance);
    for (size_t k = 0; k + 1 < buckets.size();) {
      Buckets merged = merge(buckets, k);
      if (allowed(merged, k) && end_s(merged) <= limit) {
        buckets = std::move(merged);
      } else {
        ++k;
      }
    }
    return buckets;
  }

 private:
  static Buckets merge(const Buckets& buckets, size_t k) {
    Buckets result = buckets;
    result[k].count += result[k + 1].count;
    result.erase(result.begin() + static_cast<std::ptrdiff_t>(k) + 1);
    return result;
  }

  // Moves `count` tensors over the boundary after bucket k: to the right when positive, to the left when negative.
  static Buckets shift(const Buckets& buckets, size_t k, int64_t count) {
    Buckets result = buckets;
    result[k].count -= count;
    result[k + 1].first -= count;
    result[k + 1].count += count;
    return result;
  }

  static Buckets split(const Buckets& buckets, size_t k, int64_t left_count) {
    Buckets result = buckets;
    const Bucket right = {result[k].first + left_count, result[k].count - left_count};
    result[k].count = left_count;
    result.insert(result.begin() + static_cast<std::ptrdiff_t>(k) + 1, right);
    return result;
  }

  // Whether bucket k, which has changed, and the one behind it may be as they are.
  bool allowed(const Buckets& buckets, size_t k) const {
    if (k == 0 && options_.pinned_first_count > 0 && buckets[0].count != options_.pinned_first_count) return false;
    for (size_t i = k; i < std::min(k + 2, buckets.size()); ++i) {
      if (buckets[i].count < 1) return false;
      if (buckets[i].count > 1 && evaluator_.bytes(buckets[i]) > options_.largest_bucket_bytes) return false;
    }
    return true;
  }

  bool accept(Buckets candidate, size_t k, Buckets& buckets, double& best) {
    constexpr double kLeastGain = 1e-9;  // relative; less is rounding
    if (!allowed(candidate, k) || left_-- <= 0) return false;
    const double end = end_s(candidate);
    if (end >= best * (1 - kLeastGain)) return false;
    best = end;
    buckets = std::move(candidate);
    return true;
  }

  // One pass over all buckets; true when a move was made.
  bool improve_once(Buckets& buckets, double& best) {
    constexpr int64_t kSplitsPerBucket = 16;
    bool moved = false;
    for (size_t k = 0; k < buckets.size(); ++k) {
      if (k + 1 < buckets.size() && accept(merge(buckets, k), k, buckets, best)) moved = true;
      for (int64_t count = 1; k + 1 < buckets.size() && count < std::max(buckets[k].count, buckets[k + 1].count); count *= 2) {
        if (count < buckets[k].count && accept(shift(buckets, k, count), k, buckets, best)) moved = true;
        if (count < buckets[k + 1].count && accept(shift(buckets, k, -count), k, buckets, best)) moved = true;
      }
      const int64_t stride = std::max<int64_t>(1, buckets[k].count / kSplitsPerBucket);
      for (int64_t left = stride; left < buckets[k].count; left += stride) {
        if (accept(split(buckets, k, left), k, buckets, best)) moved = true;
      }
    }
    return moved;
  }

  const SearchOptions& options_;
  PlanEvaluator evaluator_;
  int64_t left_ = 20000;  // simulations
};

// A curve whose times are all longer by this factor.
CostCurve scaled(const CostCurve& curve, double factor) {
  std::vector<CostPoint> points = curve.points();
  for (CostPoint& point : points) point.seconds *= factor;
  return CostCurve(std::move(points));
}

std::vector<Buckets> starts(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  std::vector<Buckets> result = {find_exact_plan(profile, costs, options).buckets};
  const double factor = options.simulation.comm_slowdown;
  if (factor > 1) {  // as if backward ran all the time
    const CommCosts slowed = {scaled(costs.isolated, factor), scaled(costs.gap, factor)};
    result.push_back(find_exact_plan(profile, slowed, options).buckets);
  }
  if (options.pinned_first_count > 0) return result;
  for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
    try {
      result.push_back(find_best_uniform_cap(profile, costs, {.rule = rule}, options).plan.buckets);
    } catch (const InputError&) {
      // Under this rule no cap respects the limit on bucket bytes; the other starts do.
    }
  }
  return result;
}

}  // namespace

BucketPlan find_plan_locally(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  Buckets best;
  double best_s = std::numeric_limits<double>::infinity();
  for (Buckets& start : starts(profile, costs, options)) {
    LocalSearch search(profile, costs, options);
    Buckets buckets = search.improve(std::move(start));
    const double end = search.end_s(buckets);
    if (end < best_s) {
      best_s = end;
      best = std::move(buckets);
    }
  }
  return {.buckets = std::move(best)};
}

}  // namespace firkin
