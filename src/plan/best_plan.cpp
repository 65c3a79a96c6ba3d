#include "firkin/plan/best_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "firkin/base/error.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kAnyCap = std::numeric_limits<int64_t>::max();

Bucket bucket_between(size_t i, size_t j) {
  return {static_cast<int64_t>(i), static_cast<int64_t>(j - i)};
}

// The recursion over the number of buckets: cut j lies before tensor j, and ends[j][n] is the earliest end of the
// communication of the tensors before it in n buckets. An entry with more buckets that does not end earlier is dropped:
// it could only delay later launches.
class Recursion {
 public:
  Recursion(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options)
      : profile_(profile), options_(options), simulator_(profile, costs, options.simulation) {}

  BucketPlan run() {
    const size_t tensors = profile_.bytes.size();
    ends_.assign(tensors + 1, {});
    ends_[0] = {{-kInfinity, 0}};
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

  struct End {
    double seconds = kInfinity;
    size_t from = 0;  // the cut before the last bucket
  };

  double launch_s(size_t j, size_t n) const { return profile_.ready_s[j - 1] + options_.simulation.overhead_s * static_cast<double>(n); }
  double total_s(size_t n) const {
    const double compute_end_s = profile_.backward_s + options_.simulation.overhead_s * static_cast<double>(n);
    return std::max(compute_end_s, ends_.back()[n].seconds);
  }

  void find_ends(size_t j) {
    std::vector<End>& ends = ends_[j];
    for (size_t i = j; i-- > 0;) {
      const Bucket bucket = bucket_between(i, j);
      // This bucket is too large, and so are all longer ones.
      if (bucket.count > 1 && simulator_.bytes(bucket) > options_.largest_bucket_bytes) break;
      const CallCost cost = simulator_.cost(bucket);
      if (ends.size() < ends_[i].size() + 1) ends.resize(ends_[i].size() + 1);
      for (size_t n = 1; n <= ends_[i].size(); ++n) {
        const double end_s = std::max(launch_s(j, n) + cost.isolated_s, ends_[i][n - 1].seconds + cost.gap_s);
        if (end_s < ends[n].seconds) ends[n] = {end_s, i};
      }
    }
    double earliest = kInfinity;
    size_t useful = 0;
    for (size_t n = 0; n < ends.size(); ++n) {
      if (ends[n].seconds < earliest * (1 - kRounding)) {
        earliest = ends[n].seconds;
        useful = n + 1;
      } else {
        ends[n].seconds = kInfinity;
      }
    }
    ends.resize(useful);
  }

  BucketPlan trace(size_t n) const {
    BucketPlan plan;
    for (size_t j = profile_.bytes.size(); j > 0; --n) {
      plan.buckets.push_back(bucket_between(ends_[j][n].from, j));
      j = ends_[j][n].from;
    }
    std::ranges::reverse(plan.buckets);
    return plan;
  }

  const TensorProfile& profile_;
  const SearchOptions& options_;
  Simulator simulator_;
  std::vector<std::vector<End>> ends_;  // [cut][buckets]
};

// Groups neighbouring tensors into about `most` runs, unless there are no more tensors than that: each run holds at
// most 2 / most of all bytes, and any two neighbouring runs exceed that together.
BucketPlan runs_of_tensors(const TensorProfile& profile, const SearchOptions& options, int64_t most) {
  if (std::ssize(profile.bytes) <= most) return one_tensor_per_bucket(profile.bytes.size());
  const int64_t cap = std::clamp<int64_t>(2 * (profile.total_bytes() / most), 1, options.largest_bucket_bytes);
  const BucketPlan runs = assign_buckets(profile.bytes, {.cap_bytes = cap, .rule = CapRule::kAtMost});
  const std::vector<int64_t> bytes = bucket_bytes(runs, profile.bytes);
  BucketPlan result;
  for (size_t k = 0; k < bytes.size(); ++k) {
    const Bucket run = runs.buckets[k];
    if (bytes[k] <= options.largest_bucket_bytes) {
      result.buckets.push_back(run);
      continue;
    }
    // A tensor larger than the limit must travel alone, so its run is split.
    for (int64_t i = 0; i < run.count; ++i) result.buckets.push_back({run.first + i, 1});
  }
  return result;
}

// With contention: the best of several plans, which are exact for backward slowed down fully, partly or not at all, or
// made by uniform caps.
BucketPlan best_of_starts(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  std::vector<BucketPlan> starts;
  for (const double part : {0.0, 0.25, 0.5, 0.75, 1.0}) {
    const double slowdown = std::pow(options.simulation.compute_slowdown, part);
    starts.push_back(exact_plan(slowed(profile, slowdown), costs, options, kMostExactTensors / 2));
  }
  for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
    try {
      starts.push_back(find_best_uniform_cap(profile, costs, {.rule = rule}, options).plan);
    } catch (const InputError&) {
      // Under this rule no cap respects the limit on bucket bytes; the other starts do.
    }
  }
  Simulator simulator(profile, costs, options.simulation);
  std::vector<double> end_s;
  for (const BucketPlan& plan : starts) end_s.push_back(simulator.end_s(plan.buckets));
  const double limit = std::ranges::min(end_s) * (1 + options.tolerance);
  return starts[with_fewest_buckets(end_s, limit, [&](size_t i) { return starts[i].buckets.size(); })];
}

}  // namespace

void check_search(const SearchOptions& options) {
  check_at_least("the tolerance", options.tolerance, 0);
  check_at_least("the largest bucket, bytes,", options.largest_bucket_bytes, 1);
  check_at_least("the most buckets", options.most_buckets, 1);
  check_options(options.simulation);
}

BucketPlan exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options, int64_t most_tensors) {
  const std::vector<Bucket> runs = runs_of_tensors(profile, options, most_tensors).buckets;
  if (runs.size() == profile.bytes.size()) return Recursion(profile, costs, options).run();
  TensorProfile of_runs;
  of_runs.backward_s = profile.backward_s;
  of_runs.bytes = bucket_bytes({runs, {}}, profile.bytes);
  for (const Bucket& run : runs) of_runs.ready_s.push_back(profile.ready_s[static_cast<size_t>(run.first + run.count - 1)]);
  BucketPlan plan = Recursion(of_runs, costs, options).run();
  for (Bucket& bucket : plan.buckets) {
    const Bucket& first = runs[static_cast<size_t>(bucket.first)];
    const Bucket& last = runs[static_cast<size_t>(bucket.first + bucket.count - 1)];
    bucket = {.first = first.first, .count = last.first + last.count - first.first};
  }
  return plan;
}

BestPlan find_best_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  check_profile(profile);
  check_search(options);
  const SimulationOptions& simulation = options.simulation;
  BestPlan result;
  const bool contended = simulation.compute_slowdown != 1;
  result.exact = !contended && std::ssize(profile.bytes) <= kMostExactTensors;
  result.plan = !contended ? exact_plan(profile, costs, options) : best_of_starts(profile, costs, options);
  result.timeline = simulate(profile, result.plan, costs, simulation);
  return result;
}

DistinctPlans distinct_plans(const TensorProfile& profile, const CapOptions& options, const SearchOptions& search, int64_t effort) {
  check_profile(profile);
  const auto respects_limit = [&](const BucketPlan& plan) {
    const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
    for (size_t k = 0; k < bytes.size(); ++k) {
      if (plan.buckets[k].count > 1 && bytes[k] > search.largest_bucket_bytes) return false;
    }
    return true;
  };
  DistinctPlans result;
  constexpr int64_t kTensorsPerBucket = 64;  // that are assigned in the time in which a bucket is simulated
  // Collects the plan of each cap from 1 on, each larger than the one before by at least the factor 1 + step. Returns
  // false once they take as long as `most_buckets` buckets.
  const auto collect = [&](double step, int64_t most_buckets) {
    for (int64_t cap = 1, buckets = 0;;) {
      BucketPlan plan = assign_buckets(profile.bytes, with_cap(options, cap));
      const CapInterval caps = caps_with_same_buckets(profile.bytes, with_cap(options, cap), plan);
      buckets += std::ssize(plan.buckets) + std::ssize(profile.bytes) / kTensorsPerBucket;
      if (buckets > most_buckets) return false;
      if (respects_limit(plan)) result.plans.push_back({caps, std::move(plan)});
      const double next = static_cast<double>(cap) * (1 + step);
      if (caps.highest_cap_bytes == kAnyCap || next >= static_cast<double>(kAnyCap)) return true;
      cap = std::max(caps.highest_cap_bytes + 1, static_cast<int64_t>(next));
    }
  };
  result.exhaustive = collect(0, effort);
  if (!result.exhaustive) {
    result.plans.clear();
    // This step makes about effort / 2 buckets.
    collect(2 * static_cast<double>(profile.bytes.size()) / static_cast<double>(effort), kAnyCap);
  }
  if (!result.plans.empty()) return result;
  throw InputError(fmt::format("no uniform cap keeps all buckets of several tensors within {} bytes", search.largest_bucket_bytes));
}

const UniformCap& best_of(const std::vector<UniformCap>& caps, const std::vector<double>& seconds, double tolerance) {
  const double limit_s = std::ranges::min(seconds) * (1 + tolerance);
  return caps[with_fewest_buckets(seconds, limit_s, [&](size_t i) { return std::pair(caps[i].plan.buckets.size(), seconds[i]); })];
}

BestUniformCap find_best_uniform_cap(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                     const SearchOptions& search, int64_t effort) {
  check_options(search.simulation);
  DistinctPlans distinct = distinct_plans(profile, options, search, effort);
  Simulator simulator(profile, costs, search.simulation);
  std::vector<double> end_s;
  double least_s = kInfinity;
  for (const UniformCap& each : distinct.plans) {
    end_s.push_back(simulator.end_s(each.plan.buckets, least_s * (1 + search.tolerance)));
    least_s = std::min(least_s, end_s.back());
  }
  BestUniformCap best{best_of(distinct.plans, end_s, search.tolerance), {}, distinct.exhaustive};
  best.timeline = simulate(profile, best.plan, costs, search.simulation);
  return best;
}

BucketPlan mg_wfbp_plan(const TensorProfile& profile, const CostCurve& isolated) {
  const double startup_s = fit_alpha_beta(isolated.points()).alpha_s;
  std::vector<int64_t> counts;
  int64_t open = 0;
  double open_bytes = 0;
  double previous_end_s = -kInfinity;
  for (size_t i = 0; i < profile.bytes.size(); ++i) {
    ++open;
    open_bytes += static_cast<double>(profile.bytes[i]);
    const double start_s = std::max(previous_end_s, profile.ready_s[i]);
    const double comm_s = isolated(open_bytes);
    const bool last = i + 1 == profile.bytes.size();
    if (!last && profile.ready_s[i + 1] - start_s < std::min(startup_s, comm_s)) continue;
    previous_end_s = start_s + comm_s;
    counts.push_back(std::exchange(open, 0));
    open_bytes = 0;
  }
  return plan_of_counts(counts);
}

std::vector<Baseline> baselines(const TensorProfile& profile, const CommCosts& costs) {
  const size_t tensors = profile.bytes.size();
  const CapOptions horovod = {.cap_bytes = 128 * kMiB, .rule = CapRule::kAtMost};
  return {{"pytorch", "25 MiB, close-when-full, first bucket 1 MiB", assign_buckets(profile.bytes, kTorchDefaultCaps)},
          {"horovod", "128 MiB, at-most (without its cycle time)", assign_buckets(profile.bytes, horovod)},
          {"one_bucket", "all gradients together", one_bucket(tensors)},
          {"one_per_tensor", "each gradient alone", one_tensor_per_bucket(tensors)},
          {"mg_wfbp", "merged while waiting costs less than a start-up", mg_wfbp_plan(profile, costs.isolated)}};
}

}  // namespace firkin
