#include "firkin/plan/ordered_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/launch_order.h"
#include "firkin/stats/estimates.h"
#include "simulator.h"

namespace firkin {

namespace {

constexpr double kLeastImprovement = 1e-9;  // relative; less is rounding

using Buckets = std::vector<Bucket>;

std::ptrdiff_t offset(size_t k) {
  return static_cast<std::ptrdiff_t>(k);
}

// The buckets with one tensor split into `parts` parts: the only tensor of bucket k, or the one that bucket k is a part
// of.
Buckets with_parts(Buckets buckets, size_t k, int64_t parts) {
  const int64_t tensor = buckets[k].first;
  const size_t first = k - static_cast<size_t>(buckets[k].part);
  const auto begin = buckets.begin() + offset(first);
  const auto at = buckets.erase(begin, begin + buckets[k].parts);
  Buckets split;
  for (int64_t part = 0; part < parts; ++part) split.push_back({tensor, 1, part, parts});
  buckets.insert(at, split.begin(), split.end());
  return buckets;
}

struct OrderedCandidate {
  Buckets buckets;
  std::vector<int64_t> order;  // a permutation, also when it is the ready order
  double period_s = 0;
};

class OrderedSearch {
 public:
  OrderedSearch(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options)
      : profile_(profile),
        options_(options),
        bound_s_(pipeline_bound_s(profile, costs, options.pipeline)),
        run_(profile, costs, options.pipeline) {}

  // The buckets in the best launch order: by need, patiently or not, or, if `try_ready_order`, as they become ready.
  OrderedCandidate launched(Buckets buckets, bool try_ready_order) {
    OrderedCandidate candidate{std::move(buckets), {}, std::numeric_limits<double>::infinity()};
    run_.set_buckets(candidate.buckets);
    const auto consider = [&](const std::vector<int64_t>& order) {
      const double period = run_.period_s(order);
      if (!candidate.order.empty() && period >= candidate.period_s * (1 - kLeastImprovement)) return;
      candidate.order = order;
      candidate.period_s = period;
    };
    std::vector<int64_t> order = ready_order(candidate.buckets.size());
    if (try_ready_order) consider(order);
    for (const bool patient : {false, true}) {
      run_.order_by_need(order, patient);
      if (order != candidate.order) consider(order);
    }
    return candidate;
  }

  // Moves to better plans until no move improves or `effort` (the buckets and tensors that simulations go over) is used
  // up, and then to fewer buckets within the tolerance.
  void improve(OrderedCandidate& candidate, int64_t effort) {
    effort_left_ = effort;
    while (!at_bound(candidate) && effort_left_ > 0 && improve_buckets(candidate)) {
    }
    effort_left_ = std::max<int64_t>(effort_left_, effort / 4);
    merge_within_tolerance(candidate);
    effort_left_ = std::max<int64_t>(effort_left_, effort / 4);
    while (!at_bound(candidate) && effort_left_ > 0 && improve_order(candidate)) {
    }
  }

  // Whether no plan is better by more than the tolerance.
  bool at_bound(const OrderedCandidate& candidate) const { return candidate.period_s <= bound_s_ * (1 + options_.tolerance); }

  // Whether the buckets are few enough, and no bucket of several tensors is too large.
  bool allowed(const Buckets& buckets) const {
    return few_enough(buckets) && std::ranges::all_of(buckets, [&](const Bucket& bucket) { return small_enough(bucket); });
  }

  // The parts into which a tensor larger than `cap_bytes` is split so that none is larger, as far as the options allow.
  int64_t parts_for(int64_t tensor_bytes, int64_t cap_bytes) const {
    const int64_t wanted = (tensor_bytes + cap_bytes - 1) / std::max<int64_t>(1, cap_bytes);
    const int64_t most = std::min({options_.most_parts, tensor_bytes / std::max<int64_t>(1, options_.smallest_part_bytes), kMostParts});
    return std::max<int64_t>(1, std::min(wanted, most));
  }

 private:
  bool few_enough(const Buckets& buckets) const { return static_cast<int64_t>(buckets.size()) <= options_.most_buckets; }
  bool small_enough(const Bucket& bucket) const { return bucket.count == 1 || run_.bytes(bucket) <= options_.largest_bucket_bytes; }

  // Merges bucket k with the next one. Returns no buckets if that is not allowed.
  Buckets merged(Buckets buckets, size_t k) const {
    if (k + 1 >= buckets.size() || buckets[k].parts > 1 || buckets[k + 1].parts > 1) return {};
    buckets[k].count += buckets[k + 1].count;
    buckets.erase(buckets.begin() + offset(k) + 1);
    return small_enough(buckets[k]) ? buckets : Buckets();
  }

  bool accept(Buckets buckets, OrderedCandidate& candidate) {
    if (effort_left_ <= 0 || buckets.empty() || !few_enough(buckets)) return false;
    effort_left_ -= static_cast<int64_t>(buckets.size() + profile_.bytes.size());
    OrderedCandidate other = launched(std::move(buckets), std::ranges::is_sorted(candidate.order));
    if (other.period_s >= candidate.period_s * (1 - kLeastImprovement)) return false;
    candidate = std::move(other);
    return true;
  }

  // Moves 1, 2, 4, ... tensors across the boundary after bucket k, in either direction.
  bool shift_once(OrderedCandidate& candidate, size_t k) {
    bool moved = false;
    for (int64_t count = 1; k + 1 < candidate.buckets.size(); count *= 2) {
      const Bucket left = candidate.buckets[k], right = candidate.buckets[k + 1];
      if (left.parts > 1 || right.parts > 1 || count >= std::max(left.count, right.count)) break;
      for (const int64_t shift : {count, -count}) {
        Buckets shifted = candidate.buckets;
        shifted[k].count -= shift;
        shifted[k + 1].first -= shift;
        shifted[k + 1].count += shift;
        if (shifted[k].count < 1 || shifted[k + 1].count < 1 || !small_enough(shifted[k]) || !small_enough(shifted[k + 1])) continue;
        if (accept(std::move(shifted), candidate)) moved = true;
      }
    }
    return moved;
  }

  bool cut_once(OrderedCandidate& candidate, size_t k) {
    constexpr int64_t kMostCuts = 8;
    bool moved = false;
    const int64_t stride = std::max<int64_t>(1, candidate.buckets[k].count / kMostCuts);
    for (int64_t left = stride; left < candidate.buckets[k].count; left += stride) {
      Buckets cut = candidate.buckets;
      const Bucket right = {.first = cut[k].first + left, .count = cut[k].count - left};
      cut[k].count = left;
      cut.insert(cut.begin() + offset(k) + 1, right);
      if (accept(std::move(cut), candidate)) moved = true;
    }
    return moved;
  }

  bool split_once(OrderedCandidate& candidate, size_t k) {
    const Bucket bucket = candidate.buckets[k];
    if (bucket.count > 1 || bucket.part > 0) return false;
    const int64_t most = parts_for(profile_.bytes[static_cast<size_t>(bucket.first)], 1);
    for (const int64_t parts : {bucket.parts / 2, bucket.parts - 1, bucket.parts + 1, bucket.parts * 2, bucket.parts * 4}) {
      if (parts < 1 || parts > most || parts == bucket.parts) continue;
      if (accept(with_parts(candidate.buckets, k, parts), candidate)) return true;
    }
    return false;
  }

  // One pass over all buckets; true when a move was made.
  bool improve_buckets(OrderedCandidate& candidate) {
    bool moved = false;
    for (size_t k = 0; k < candidate.buckets.size(); ++k) {
      if (accept(merged(candidate.buckets, k), candidate)) moved = true;
      if (shift_once(candidate, k)) moved = true;
      if (cut_once(candidate, k)) moved = true;
      if (split_once(candidate, k)) moved = true;
    }
    return moved;
  }

  // Moves each bucket by a few places in the launch order.
  bool improve_order(OrderedCandidate& candidate) {
    constexpr int64_t kFarthest = 6;
    bool moved = false;
    run_.set_buckets(candidate.buckets);
    std::vector<int64_t>& order = candidate.order;
    const auto count = static_cast<int64_t>(order.size());
    const auto move = [&](int64_t from, int64_t to) {
      const auto at = order.begin();
      if (from < to) std::rotate(at + from, at + from + 1, at + to + 1);
      if (to < from) std::rotate(at + to, at + from, at + from + 1);
    };
    for (int64_t from = 0; from < count; ++from) {
      for (int64_t to = std::max<int64_t>(0, from - kFarthest); to <= std::min(count - 1, from + kFarthest); ++to) {
        if (to == from || effort_left_ <= 0) continue;
        effort_left_ -= count;
        move(from, to);
        const double period = run_.period_s(order);
        if (period < candidate.period_s * (1 - kLeastImprovement)) {
          candidate.period_s = period;
          moved = true;
        } else {
          move(to, from);
        }
      }
    }
    return moved;
  }

  void merge_within_tolerance(OrderedCandidate& candidate) {
    const double limit = candidate.period_s * (1 + options_.tolerance);
    for (size_t k = 0; k < candidate.buckets.size() && effort_left_ > 0;) {
      const Bucket& bucket = candidate.buckets[k];
      Buckets fewer;
      if (bucket.parts == 1) {
        fewer = merged(candidate.buckets, k);
      } else if (bucket.part == 0) {
        fewer = with_parts(candidate.buckets, k, bucket.parts - 1);
      }
      effort_left_ -= static_cast<int64_t>(candidate.buckets.size() + profile_.bytes.size());
      OrderedCandidate other = fewer.empty() ? OrderedCandidate() : launched(std::move(fewer), std::ranges::is_sorted(candidate.order));
      if (!other.buckets.empty() && other.period_s <= limit) {
        candidate = std::move(other);
      } else {
        ++k;
      }
    }
  }

  const TensorProfile& profile_;
  const OrderedSearchOptions& options_;
  double bound_s_;
  Simulator run_;
  int64_t effort_left_ = 0;
};

constexpr size_t kImprovedStarts = 4;
constexpr int64_t kEffortPerTensor = 5000;  // for each start

void check_ordered(const OrderedSearchOptions& options) {
  check_options(options.pipeline);
  check_at_least("the tolerance", options.tolerance, 0);
  check_at_least("the largest bucket, bytes,", options.largest_bucket_bytes, 1);
  check_at_least("the most buckets", options.most_buckets, 1);
  check_at_least("the most parts of a tensor", options.most_parts, 1);
  check_at_least("the smallest part, bytes,", options.smallest_part_bytes, 1);
}

// Takes every tensor larger than the cap out of its bucket and splits it into parts.
Buckets split_above(const Buckets& buckets, const TensorProfile& profile, const OrderedSearch& search, int64_t cap) {
  Buckets result;
  for (const Bucket& bucket : buckets) {
    bool takes_more = false;  // whether the last bucket of the result does
    for (int64_t tensor = bucket.first; tensor < bucket.first + bucket.count; ++tensor) {
      const int64_t parts = search.parts_for(profile.bytes[static_cast<size_t>(tensor)], cap);
      if (parts == 1 && takes_more) {
        ++result.back().count;
        continue;
      }
      for (int64_t part = 0; part < parts; ++part) result.push_back({tensor, 1, part, parts});
      takes_more = parts == 1;
    }
  }
  return result;
}

// Caps from all bytes down to a quarter of the mean tensor, about three for each factor of two.
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
  std::vector<Buckets> partitions = {
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
  for (Buckets& buckets : partitions) {
    if (search.allowed(buckets)) starts.push_back(search.launched(std::move(buckets), true));
  }
  if (starts.empty()) {
    throw InputError(fmt::format("no plan of at most {} buckets, of at most {} bytes; expected more", options.most_buckets,
                                 options.largest_bucket_bytes));
  }
  std::ranges::stable_sort(starts, {}, [](const OrderedCandidate& start) { return std::pair(start.period_s, start.buckets.size()); });
  const auto same = std::ranges::unique(starts, {}, &OrderedCandidate::buckets);
  starts.erase(same.begin(), same.end());
  if (starts.size() > kImprovedStarts) starts.resize(kImprovedStarts);
  return starts;
}

Pipeline simulated(const TensorProfile& profile, const BucketPlan& plan, const InputDraw& draw) {
  return simulate_pipeline(slowed(profile, draw.compute_factor), plan, draw.costs, pipeline_options(draw.costs, draw.simulation));
}

// Replaces the ready order with an empty one, which means the same.
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

PipelineOptions pipeline_options(const CommCosts& costs, const SimulationOptions& simulation) {
  constexpr double kAgreementBytes = 64;
  return {.simulation = simulation, .agreement_s = std::max(0.0, costs.isolated(kAgreementBytes))};
}

std::vector<double> drawn_periods(const TensorProfile& profile, const BucketPlan& plan, const std::vector<InputDraw>& draws) {
  std::vector<double> periods;
  for (const InputDraw& draw : draws) periods.push_back(simulated(profile, plan, draw).period_s);
  return periods;
}

BucketPlan with_robust_order(const TensorProfile& profile, BucketPlan plan, const std::vector<InputDraw>& draws) {
  if (!profile.knows_forward() || draws.empty()) return plan;
  const size_t count = plan.buckets.size();
  double period_s = 0;  // the mean in the plan's own order
  ObservedTraining training;
  training.transfer_s.resize(count);
  training.forward_s = profile.forward_s;
  for (const InputDraw& draw : draws) {
    const Pipeline step = simulated(profile, plan, draw);
    ObservedStep& seen = training.steps.emplace_back();
    seen.backward_s = step.backward_end_s - step.forward_end_s;
    period_s += step.period_s / static_cast<double>(draws.size());
    seen.ready_s.resize(count);
    for (const BucketSpan& span : step.buckets) {
      const auto bucket = static_cast<size_t>(span.bucket);
      seen.ready_s[bucket] = span.ready_s - step.forward_end_s;
      training.transfer_s[bucket] += draw.costs.gap(static_cast<double>(span.bytes)) / static_cast<double>(draws.size());
    }
  }
  for (const Bucket& bucket : plan.buckets) training.needed_s.push_back(first_need_s(profile, bucket));
  BucketPlan robust = {plan.buckets, plan_order(robust_launch_order(training).order)};
  return robust != plan && mean(drawn_periods(profile, robust, draws)) < period_s ? robust : plan;
}

PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s,
                                 const SearchOptions& search, const std::vector<InputDraw>& draws) {
  const OrderedSearchOptions options = {.pipeline = pipeline_options(costs, search.simulation),
                                        .tolerance = search.tolerance,
                                        .largest_bucket_bytes = search.largest_bucket_bytes};
  OrderedPlan best = find_ordered_plan(profile, costs, options);
  best.plan = with_robust_order(profile, std::move(best.plan), draws);
  const Pipeline step = simulate_pipeline(profile, best.plan, costs, options.pipeline);
  PredictedOrdered result;
  result.bucketed_period_s = profile.forward_s + bucketed_backward_s + profile.updates_s();
  result.period_s = step.period_s;
  result.gain = result.bucketed_period_s > 0 ? 1 - result.period_s / result.bucketed_period_s : 0;
  result.bound_s = best.bound_s;
  result.waited_s = step.waited_s;
  result.computation_s = step.computation_s;
  result.communication_s = step.communication_s;
  result.agreement_s = options.pipeline.agreement_s;
  for (const BucketSpan& span : step.buckets) {
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto names = profile.names.begin() + bucket.first;
    const auto from_backward = [&](double seconds) { return seconds - step.forward_end_s; };
    result.buckets.push_back({.bucket = span.bucket,
                              .first_tensor = bucket.first,
                              .part = bucket.part,
                              .parts = bucket.parts,
                              .bytes = span.bytes,
                              .tensors = {names, names + bucket.count},
                              .ready_s = from_backward(span.ready_s),
                              .start_s = from_backward(span.start_s),
                              .end_s = from_backward(span.end_s),
                              .needed_s = first_need_s(profile, bucket)});
  }
  result.plan = std::move(best.plan);
  return result;
}

}  // namespace firkin
