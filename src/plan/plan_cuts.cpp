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

}  // namespace

std::optional<BucketPlan> nearest_plan(const BucketPlan& wanted, const std::function<bool(const BucketPlan&)>& is_free) {
  constexpr size_t kMostTried = 5000;
  if (wanted.buckets.empty()) return std::nullopt;
  std::set<Cuts> seen{cuts_of(wanted)};
  std::deque<Cuts> to_try{cuts_of(wanted)};
  for (size_t tried = 0; !to_try.empty() && tried < kMostTried; ++tried) {
    Cuts cuts = std::move(to_try.front());
    to_try.pop_front();
    if (BucketPlan plan = plan_of(cuts); is_free(plan)) return plan;
    const size_t middle = cuts.size() / 2;
    for (size_t step = 0; step < cuts.size() && seen.size() <= kMostTried; ++step) {  // the cuts in the middle first
      const size_t i = step % 2 == 0 ? middle + step / 2 : middle - 1 - step / 2;
      cuts[i].flip();
      if (seen.insert(cuts).second) to_try.push_back(cuts);
      cuts[i].flip();
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
