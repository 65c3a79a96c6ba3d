// Simulates a backward pass with its all-reduces, and the forward pass after it. simulate(), simulate_pipeline() and
// every search use it; one Simulator runs many plans for the same profile and costs.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "firkin/base/error.h"
#include "firkin/plan/best_plan.h"
#include "firkin/plan/timeline.h"

namespace firkin {

// a(x) and g(x) for one size.
struct CallCost {
  double isolated_s = 0;
  double gap_s = 0;
};

// The values of both curves by size, cached if many plans are to be simulated: tensors have few distinct sizes, so bucket
// sizes often repeat.
class CachedCosts {
 public:
  CachedCosts(const CommCosts& costs, bool many_plans) : costs_(costs), entries_(many_plans ? size_t{1} << kSlotBits : 0) {}

  CallCost operator()(double bytes) {
    if (entries_.empty()) return {costs_.isolated(bytes), costs_.gap(bytes)};
    Entry& entry = entries_[slot(bytes)];
    if (entry.bytes != bytes) entry = {bytes, {costs_.isolated(bytes), costs_.gap(bytes)}};
    return entry.cost;
  }

 private:
  struct Entry {
    double bytes = -1;
    CallCost cost;
  };

  static constexpr int kSlotBits = 14;
  static size_t slot(double bytes) {
    constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;  // Fibonacci hashing (Knuth, vol. 3, 6.4)
    return static_cast<size_t>(static_cast<uint64_t>(bytes) * kGoldenRatio >> (64 - kSlotBits));
  }

  const CommCosts& costs_;
  std::vector<Entry> entries_;
};

// Wall time and completed work, which advances at 1 / compute_slowdown while an all-reduce runs.
class SimulatedClock {
 public:
  explicit SimulatedClock(const SimulationOptions& options) : slowdown_(options.compute_slowdown) {}

  double now() const { return now_; }
  double work() const { return work_; }

  // Computes until the work is `work_s`, while all-reduces are in flight until `busy_until`.
  void compute_to(double work_s, double busy_until) {
    const double needed_s = (work_s - work_) * slowdown_, busy_s = std::max(0.0, busy_until - now_);
    work_ = work_s;
    if (slowdown_ == 1) {
      now_ = work_s + idle_;  // not summed up, so that rounding errors do not accumulate
    } else {
      now_ += needed_s <= busy_s ? needed_s : busy_s + (needed_s - busy_s) / slowdown_;
    }
  }

  // The computation stands still until `end_s`.
  void wait_until(double end_s) {
    if (end_s <= now_) return;
    idle_ += end_s - now_;
    now_ = end_s;
  }

 private:
  double slowdown_;
  double now_ = 0, work_ = 0;
  double idle_ = 0;  // how long the computation has stood still
};

// The first plan with the fewest buckets among those whose value is at most `limit`. buckets_of(i): those of plan i, or
// what else plans are to be ranked by.
template <typename BucketsOf>
size_t with_fewest_buckets(const std::vector<double>& values, double limit, const BucketsOf& buckets_of) {
  const auto rank = [&](size_t i) { return std::pair(values[i] > limit, buckets_of(i)); };
  return std::ranges::min(std::views::iota(size_t{0}, values.size()), {}, rank);
}

// The launch order as buckets become ready.
std::vector<int64_t> ready_order(size_t buckets);

// When forward first needs a tensor of the bucket; 0 where the profile does not know it.
double first_need_s(const TensorProfile& profile, const Bucket& bucket);

// Throws InputError unless `value` is finite and at least `least`.
template <typename Number>
void check_at_least(const char* what, Number value, std::type_identity_t<Number> least) {
  if (!std::isfinite(value) || value < least) throw InputError(fmt::format("{} is {}; expected at least {}", what, value, least));
}

// Throws InputError unless the limits are positive and the options of the simulation pass their checks.
void check_search(const SearchOptions& options);

// The cap with the fewest buckets among those within `tolerance` of the least time. seconds[i] is the time of caps[i].
const UniformCap& best_of(const std::vector<UniformCap>& caps, const std::vector<double>& seconds, double tolerance);

class Simulator {
 public:
  // Keeps references to the profile and the costs.
  Simulator(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options, bool many_plans = true);
  // The strategy `sharded`: its period_s() is that of simulate_sharded().
  Simulator(const TensorProfile& profile, const ShardedCosts& costs, int64_t ranks, const SimulationOptions& options,
            bool many_plans = true);

  int64_t bytes(const Bucket& bucket) const;
  CallCost cost(const Bucket& bucket) { return costs_(static_cast<double>(bytes(bucket))); }

  // The end of backward with its communication, for buckets in ready order. Stops once that exceeds `give_up_s`, and
  // then returns some value above it.
  double end_s(std::span<const Bucket> buckets, double give_up_s = std::numeric_limits<double>::infinity());

  // Backward with its communication, launched in the plan's order.
  Timeline backward(const BucketPlan& plan);

  // Sets the buckets for any number of launch orders. They must have passed check_plan.
  void set_buckets(std::span<const Bucket> buckets);

  // The launch order by need: whenever the link is free, the ready bucket that the next forward needs first goes next.
  std::vector<int64_t> order_by_need() const;

  // The period with these buckets in this launch order: backward, agreement, forward. Also fills `pipeline`, if given,
  // except for bytes.
  double period_s(std::span<const int64_t> order, Pipeline* pipeline = nullptr);

  // The whole pipeline, launched in the plan's order.
  Pipeline pipeline(const BucketPlan& plan);

 private:
  struct Piece {  // a bucket
    CallCost cost;
    double ready_s = 0;
    double needed_s = 0;
    double update_s = 0;  // the optimiser's time on it in forward
    double step_s = 0;    // under `sharded` instead: the optimiser's time on this rank's part, before forward
    CallCost gather = {};
    size_t urgency = 0;  // its place in by_urgency_
    double arrival = 0;
    bool updated = false;
  };

  double needed_s(const Bucket& bucket) const;
  double ready_s(const Bucket& bucket) const { return profile_.ready_s[static_cast<size_t>(bucket.first + bucket.count - 1)]; }
  template <typename PieceAt, typename Launched>
  double launch_all(size_t count, SimulatedClock& clock, const PieceAt& piece_at, const Launched& launched) const;
  double step_and_gather(SimulatedClock& clock, double busy_until, Pipeline* pipeline);
  void run_forward(SimulatedClock& clock, double busy_until, Pipeline* pipeline);
  void await(Piece& piece, SimulatedClock& clock, double busy_until, Pipeline* pipeline);
  static void update(Piece& piece, SimulatedClock& clock, double busy_until);

  const TensorProfile& profile_;
  const SimulationOptions options_;
  CachedCosts costs_;
  std::optional<CachedCosts> gather_costs_;  // set only under `sharded`
  double ranks_ = 1;                         // under `sharded`: those among which the optimiser's step is divided
  std::vector<int64_t> bytes_before_;        // the sum over the tensors before tensor i
  std::vector<double> update_before_;        // update_s of the tensors before tensor i
  std::vector<int64_t> needed_before_;       // the last tensor before tensor i that forward needs earlier; -1: none
  std::vector<Piece> pieces_;
  std::vector<size_t> by_need_;     // pieces, in the order in which forward needs them
  std::vector<size_t> by_urgency_;  // the same, of those needed at once the one with the longest update first
  std::vector<size_t> arrivals_;    // pieces, in the order in which they arrive
  size_t next_arrival_ = 0;
};

}  // namespace firkin
