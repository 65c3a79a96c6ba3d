#include "firkin/plan/ordered_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/optimal_plan.h"
#include "ordered_search.h"

namespace firkin {
namespace {

constexpr size_t kImprovedStarts = 4;
constexpr int64_t kEffortPerTensor = 5000;  // of each start

void check_ordered(const OrderedSearchOptions& options) {
  check_options(options.pipeline);
  if (!std::isfinite(options.tolerance) || options.tolerance < 0) {
    throw InputError(fmt::format("the tolerance is {}; expected at least 0", options.tolerance));
  }
  const auto check = [](const char* what, int64_t value) {
    if (value < 1) throw InputError(fmt::format("{} is {}; expected at least 1", what, value));
  };
  check("the largest bucket, bytes,", options.largest_bucket_bytes);
  check("the most buckets", options.most_buckets);
  check("the most parts of a tensor", options.most_parts);
  check("the smallest part, bytes,", options.smallest_part_bytes);
}

// Every tensor larger than the cap by itself, in parts.
std::vector<Bucket> split_above(const std::vector<Bucket>& buckets, const TensorProfile& profile, const OrderedSearch& search,
                                int64_t cap) {
  std::vector<Bucket> result;
  for (const Bucket& bucket : buckets) {
    Bucket whole = {.first = bucket.first, .count = 0};
    const auto close = [&] {
      if (whole.count > 0) result.push_back(whole);
    };
    for (int64_t tensor = bucket.first; tensor < bucket.first + bucket.count; ++tensor) {
      const int64_t parts = search.parts_for(profile.bytes[static_cast<size_t>(tensor)], cap);
      if (parts == 1) {
        ++whole.count;
        continue;
      }
      close();
      whole = {.first = tensor + 1, .count = 0};
      for (int64_t part = 0; part < parts; ++part) result.push_back({tensor, 1, part, parts});
    }
    close();
  }
  return result;
}

// Caps from everything in one bucket down to the smallest part, about three for each factor of two.
std::vector<int64_t> start_caps(int64_t total_bytes, int64_t tensors) {
  constexpr double kRatio = 0.8;
  std::vector<int64_t> caps;
  const auto smallest = std::max<double>(1, static_cast<double>(total_bytes) / (4 * static_cast<double>(tensors)));
  for (auto cap = static_cast<double>(std::max<int64_t>(1, total_bytes)); cap >= smallest; cap *= kRatio) {
    caps.push_back(static_cast<int64_t>(cap));
  }
  return caps;
}

std::vector<OrderedCandidate> ordered_starts(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options,
                                             OrderedSearch& search) {
  std::vector<std::vector<Bucket>> partitions = {
      exact_plan(profile, costs, {.largest_bucket_bytes = options.largest_bucket_bytes, .simulation = options.pipeline.simulation})
          .buckets};
  const int64_t total = profile.total_bytes();
  for (const int64_t cap : start_caps(total, static_cast<int64_t>(profile.bytes.size()))) {
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      partitions.push_back(assign_buckets(profile.bytes, {.cap_bytes = cap, .rule = rule}).buckets);
      partitions.push_back(split_above(partitions.back(), profile, search, cap));
    }
  }
  std::vector<OrderedCandidate> starts;
  for (std::vector<Bucket>& buckets : partitions) {
    if (search.allowed(buckets)) starts.push_back(search.launched(std::move(buckets), true));
  }
  if (starts.empty()) {
    throw InputError(fmt::format("no plan of at most {} buckets, of at most {} bytes; expected more", options.most_buckets,
                                 options.largest_bucket_bytes));
  }
  std::ranges::stable_sort(starts, [](const OrderedCandidate& a, const OrderedCandidate& b) {
    return std::pair(a.period_s, a.buckets.size()) < std::pair(b.period_s, b.buckets.size());
  });
  const auto same = std::ranges::unique(starts, {}, &OrderedCandidate::buckets);
  starts.erase(same.begin(), same.end());
  if (starts.size() > kImprovedStarts) starts.resize(kImprovedStarts);
  return starts;
}

// Empty instead of the ready order.
std::vector<int64_t> plan_order(std::vector<int64_t> order) {
  if (std::ranges::is_sorted(order)) order.clear();
  return order;
}

}  // namespace

std::vector<int64_t> launch_order_by_need(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs,
                                          const PipelineOptions& options) {
  check_options(options);
  Simulator run(profile, costs, options);
  run.set_buckets(plan.buckets);
  std::vector<int64_t> order;
  run.order_by_need(order, false);
  return plan_order(std::move(order));
}

OrderedPlan find_ordered_plan(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options) {
  check_profile(profile);
  check_ordered(options);
  OrderedPlan result;
  result.bound_s = pipeline_bound_s(profile, costs, options.pipeline);
  if (!profile.bytes.empty()) {
    OrderedSearch search(profile, costs, options);
    std::vector<OrderedCandidate> candidates = ordered_starts(profile, costs, options, search);
    for (OrderedCandidate& candidate : candidates) {
      search.improve(candidate, kEffortPerTensor * static_cast<int64_t>(profile.bytes.size()));
      if (search.at_bound(candidate)) break;
    }
    const double limit = std::ranges::min_element(candidates, {}, &OrderedCandidate::period_s)->period_s * (1 + options.tolerance);
    const auto rank = [&](const OrderedCandidate& c) { return std::pair(c.period_s > limit, c.buckets.size()); };
    OrderedCandidate& best = *std::ranges::min_element(candidates, {}, rank);
    result.plan = {std::move(best.buckets), plan_order(std::move(best.order))};
  }
  result.pipeline = simulate_pipeline(profile, result.plan, costs, options.pipeline);
  return result;
}

}  // namespace firkin
