#include "firkin/plan/optimal_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/plan/uniform_cap.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void check_search(const SearchOptions& options) {
  if (!std::isfinite(options.tolerance) || options.tolerance < 0) {
    throw InputError(fmt::format("the tolerance is {}; expected at least 0", options.tolerance));
  }
  if (options.largest_bucket_bytes <= 0) {
    throw InputError(fmt::format("the largest bucket is {} bytes; expected at least 1", options.largest_bucket_bytes));
  }
  check_options(options.simulation);
}

Bucket bucket_between(size_t i, size_t j) {
  return {static_cast<int64_t>(i), static_cast<int64_t>(j - i)};
}

// The recursion, by the number of buckets: cut j lies before tensor j, and ends[j][n] is the earliest end of the communication of the
// tensors before it in n buckets. What more buckets do not reach earlier is left out: whatever follows would only be launched later.
class Recursion {
 public:
  Recursion(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options)
      : profile_(profile), options_(options), simulator_(profile, costs, {.simulation = options.simulation}) {}

  BucketPlan run() {
    const size_t tensors = profile_.bytes.size();
    ends_.assign(tensors + 1, {});
    ends_[0] = {-kInfinity};
    for (size_t j = 1; j <= tensors; ++j) find_ends(j);
    double least = kInfinity;
    for (size_t n = 0; n < ends_[tensors].size(); ++n) least = std::min(least, total_s(n));
    const double limit = least * (1 + std::max(options_.tolerance, kRounding));
    size_t n = 0;
    while (total_s(n) > limit) ++n;
    return trace(n);
  }

 private:
  static constexpr double kRounding = 1e-12;

  double launch_s(size_t j, size_t n) const { return profile_.ready_s[j - 1] + options_.simulation.overhead_s * static_cast<double>(n); }
  double total_s(size_t n) const {
    const double compute_end_s = profile_.backward_s + options_.simulation.overhead_s * static_cast<double>(n);
    return std::max(compute_end_s, ends_.back()[n]);
  }
  bool allowed(const Bucket& bucket) const { return bucket.count == 1 || simulator_.bytes(bucket) <= options_.largest_bucket_bytes; }

  void find_ends(size_t j) {
    std::vector<double>& ends = ends_[j];
    for (size_t i = j; i-- > 0;) {
      const Bucket bucket = bucket_between(i, j);
      if (!allowed(bucket)) break;  // and so for all larger buckets
      const CallCost cost = simulator_.cost(bucket);
      if (ends.size() < ends_[i].size() + 1) ends.resize(ends_[i].size() + 1, kInfinity);
      for (size_t n = 1; n <= ends_[i].size(); ++n) {
        ends[n] = std::min(ends[n], std::max(launch_s(j, n) + cost.isolated_s, ends_[i][n - 1] + cost.gap_s));
      }
    }
    double earliest = kInfinity;
    size_t useful = 0;
    for (size_t n = 0; n < ends.size(); ++n) {
      if (ends[n] < earliest * (1 - kRounding)) {
        earliest = ends[n];
        useful = n + 1;
      } else {
        ends[n] = kInfinity;
      }
    }
    ends.resize(useful);
  }

  BucketPlan trace(size_t n) {
    BucketPlan plan;
    for (size_t j = profile_.bytes.size(); j > 0; --n) {
      size_t from = j;
      double earliest = kInfinity;
      for (size_t i = j; i-- > 0 && allowed(bucket_between(i, j));) {
        if (ends_[i].size() < n) continue;
        const CallCost cost = simulator_.cost(bucket_between(i, j));
        const double end = std::max(launch_s(j, n) + cost.isolated_s, ends_[i][n - 1] + cost.gap_s);
        if (end < earliest) std::tie(earliest, from) = std::pair(end, i);
      }
      plan.buckets.push_back(bucket_between(from, j));
      j = from;
    }
    std::ranges::reverse(plan.buckets);
    return plan;
  }

  const TensorProfile& profile_;
  const SearchOptions& options_;
  Simulator simulator_;
  std::vector<std::vector<double>> ends_;  // [cut][buckets]
};

// With contention: the best of plans that are exact without, of everything slowed down as it is while both run, or by less, or not at all;
// and of what uniform caps make.
BucketPlan best_of_starts(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  std::vector<BucketPlan> starts;
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    TensorProfile slowed = profile;
    for (double& ready_s : slowed.ready_s) ready_s *= std::pow(options.simulation.compute_slowdown, part);
    slowed.backward_s *= std::pow(options.simulation.compute_slowdown, part);
    const double factor = std::pow(options.simulation.comm_slowdown, part);
    starts.push_back(exact_plan(slowed, scaled(costs, factor, factor), options));
  }
  for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
    try {
      starts.push_back(find_best_uniform_cap(profile, costs, {.rule = rule}, options).plan);
    } catch (const InputError&) {
      // Under this rule no cap respects the limit on bucket bytes; the other starts do.
    }
  }
  Simulator simulator(profile, costs, {.simulation = options.simulation});
  std::vector<double> end_s;
  for (const BucketPlan& plan : starts) end_s.push_back(simulator.end_s(plan.buckets));
  const double limit = std::ranges::min(end_s) * (1 + options.tolerance);
  size_t best = starts.size();
  for (size_t i = 0; i < starts.size(); ++i) {
    if (end_s[i] <= limit && (best == starts.size() || starts[i].buckets.size() < starts[best].buckets.size())) best = i;
  }
  return std::move(starts[best]);
}

}  // namespace

BucketPlan exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  return Recursion(profile, costs, options).run();
}

PlannedBuckets find_optimal_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  check_profile(profile);
  check_search(options);
  const SimulationOptions& simulation = options.simulation;
  PlannedBuckets result;
  result.exact = simulation.compute_slowdown == 1 && simulation.comm_slowdown == 1;
  result.plan = result.exact ? exact_plan(profile, costs, options) : best_of_starts(profile, costs, options);
  result.timeline = simulate(profile, result.plan, costs, simulation);
  return result;
}

}  // namespace firkin
