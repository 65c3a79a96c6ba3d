#include "plan_cuts.h"

#include <algorithm>
#include <deque>
#include <set>

#include "firkin/plan/uniform_cap.h"

namespace firkin {
namespace {

// [i]: a bucket ends between tensor i and the next.
using Cuts = std::vector<bool>;

Cuts cuts_of(const BucketPlan& plan) {
  if (plan.buckets.empty()) return {};
  Cuts cuts(static_cast<size_t>(plan.buckets.back().first + plan.buckets.back().count) - 1, false);
  for (size_t k = 1; k < plan.buckets.size(); ++k) cuts[static_cast<size_t>(plan.buckets[k].first) - 1] = true;
  return cuts;
}

BucketPlan plan_of(const Cuts& cuts) {
  BucketPlan plan{{{0, 1}}, {}};
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i]) {
      plan.buckets.push_back({static_cast<int64_t>(i) + 1, 1});
    } else {
      ++plan.buckets.back().count;
    }
  }
  return plan;
}

// All indices, from the middle outwards.
std::vector<size_t> from_the_middle(size_t count) {
  std::vector<size_t> order;
  for (size_t i = 0; i < count; ++i) order.push_back(i);
  const auto distance = [count](size_t i) { return std::max(2 * i + 1, count) - std::min(2 * i + 1, count); };
  std::ranges::stable_sort(order, {}, distance);
  return order;
}

}  // namespace

std::vector<BucketPlan> neighbours(const BucketPlan& plan) {
  Cuts cuts = cuts_of(plan);
  std::vector<BucketPlan> plans;
  for (const size_t i : from_the_middle(cuts.size())) {
    cuts[i].flip();
    plans.push_back(plan_of(cuts));
    cuts[i].flip();
  }
  return plans;
}

std::optional<BucketPlan> nearest_plan(const BucketPlan& wanted, const std::function<bool(const BucketPlan&)>& is_free) {
  constexpr size_t kMostTried = 5000;
  std::set<Cuts> seen{cuts_of(wanted)};
  std::deque<BucketPlan> to_try{wanted};
  for (size_t tried = 0; !to_try.empty() && tried < kMostTried; ++tried) {
    const BucketPlan plan = std::move(to_try.front());
    to_try.pop_front();
    if (is_free(plan)) return plan;
    if (seen.size() > kMostTried) continue;
    for (BucketPlan& next : neighbours(plan)) {
      if (seen.insert(cuts_of(next)).second) to_try.push_back(std::move(next));
    }
  }
  return std::nullopt;
}

bool is_made_by_a_cap(const BucketPlan& plan, std::span<const int64_t> sizes, const CapOptions& rule) {
  // Were it made by a cap, it would be made by all caps of this interval.
  CapOptions options = rule;
  options.cap_bytes = caps_with_same_buckets(sizes, rule, plan).lowest_cap_bytes;
  return assign_buckets(sizes, options) == plan;
}

}  // namespace firkin
