#include "exact_search.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "cost_bounds.h"
#include "plan_evaluator.h"

namespace firkin {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Times are kept for cuts: cut j lies before tensor j, and F(j) is about the tensors before it.
class ExactSearch {
 public:
  ExactSearch(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options)
      : tensors_(profile.bytes.size()),
        options_(options),
        backward_s_(profile.backward_s),
        bytes_before_(tensors_ + 1, 0),
        launch_(tensors_ + 1, 0),
        costs_(costs),
        bounds_(costs, static_cast<double>(profile.total_bytes())) {
    for (size_t j = 1; j <= tensors_; ++j) {
      bytes_before_[j] = bytes_before_[j - 1] + static_cast<double>(profile.bytes[j - 1]);
      launch_[j] = profile.ready_s[j - 1] + options.simulation.copy_s_per_byte * bytes_before_[j];
    }
  }

  BucketPlan run() {
    if (tensors_ == 0) return {};
    find_earliest_ends();
    deadline_s_ = within_tolerance(end_of(parents_to_buckets()));
    if (options_.simulation.overhead_s == 0) return {.buckets = fewest_buckets()};
    find_latest_ends();
    return {.buckets = best_bucket_count()};
  }

 private:
  double within_tolerance(double seconds) const {
    constexpr double kRounding = 1e-12;
    return seconds * (1 + std::max(options_.tolerance, kRounding));
  }

  double overhead_s(size_t calls) const { return options_.simulation.overhead_s * static_cast<double>(calls); }

  // When backward is over, with `calls` launches.
  double compute_end_s(size_t calls) const {
    return backward_s_ + options_.simulation.copy_s_per_byte * bytes_before_.back() + overhead_s(calls);
  }

  bool allowed(size_t i, size_t j) const {
    const auto pinned = static_cast<size_t>(options_.pinned_first_count);
    if (pinned > 0 && (i == 0 ? j != pinned : i < pinned)) return false;
    return j - i == 1 || bytes_before_[j] - bytes_before_[i] <= static_cast<double>(options_.largest_bucket_bytes);
  }

  // earliest_[j] = F(j), as if each bucket were the first to be launched: exact without overhead, a lower bound with it.
  void find_earliest_ends() {
    earliest_.assign(tensors_ + 1, kInfinity);
    earliest_[0] = -kInfinity;
    parent_.assign(tensors_ + 1, 0);
    for (size_t j = 1; j <= tensors_; ++j) {
      const double launch = launch_[j] + overhead_s(1);
      double best = kInfinity;
      size_t parent = 0;
      const auto consider = [&](size_t i) {
        const CallCost cost = costs_(bytes_before_[j] - bytes_before_[i]);
        const double end = std::max(launch + cost.isolated_s, earliest_[i] + cost.gap_s);
        if (end < best) {
          best = end;
          parent = i;
        }
      };
      if (j > 1 && allowed(parent_[j - 1], j)) consider(parent_[j - 1]);  // often nearly right, so that the bounds reject at once
      for (size_t i = j; i-- > 0;) {
        const double bytes = bytes_before_[j] - bytes_before_[i];
        const CostBounds::Cell& cell = bounds_(bytes);
        if (launch + cell.least_isolated_from_here >= best) break;  // and so for all larger buckets
        if (std::max(launch + cell.isolated(bytes), earliest_[i] + cell.gap(bytes)) >= best || !allowed(i, j)) continue;
        consider(i);
      }
      earliest_[j] = best;
      parent_[j] = parent;
    }
  }

  // From the end: latest_[i] is the latest end of the communication before cut i with which the rest, in at most `layers` buckets, meets
  // the deadline. The first number of buckets that reaches cut 0 is the least. A cut is passed on only when one more bucket gained it time,
  // and only while F(i) is early enough for it.
  std::vector<Bucket> fewest_buckets() {
    latest_.assign(tensors_ + 1, -kInfinity);
    latest_[tensors_] = deadline_s_;
    std::vector<size_t> gained = {tensors_};
    std::vector<std::vector<Bucket>> layers;  // by the number of buckets to the end: the next bucket from each cut that gained
    while (!gained.empty()) {
      std::vector<double> gain(tensors_, -kInfinity);
      std::vector<size_t> next(tensors_, 0);
      for (const size_t j : gained) reach_back_from(j, gain, next);
      gained.clear();
      layers.emplace_back();
      for (size_t i = 0; i < tensors_; ++i) {
        if (gain[i] == -kInfinity) continue;
        latest_[i] = gain[i];
        gained.push_back(i);
        layers.back().push_back(bucket_between(i, next[i]));
      }
      if (gain[0] > -kInfinity) return follow(layers);
    }
    return parents_to_buckets();  // rounding left the deadline unmet, which the plan that set it meets
  }

  // All buckets that end at cut j, in a plan whose last buckets are known from there on.
  void reach_back_from(size_t j, std::vector<double>& gain, std::vector<size_t>& next) {
    const double latest = latest_[j];
    for (size_t i = j; i-- > 0;) {
      const double bytes = bytes_before_[j] - bytes_before_[i];
      const CostBounds::Cell& cell = bounds_(bytes);
      if (launch_[j] + cell.least_isolated_from_here > latest) return;
      const double bound = latest - cell.gap(bytes);
      if (bound < earliest_[i] || bound <= std::max(gain[i], latest_[i]) || !allowed(i, j)) continue;
      const CallCost cost = costs_(bytes);
      if (launch_[j] + cost.isolated_s > latest || latest - cost.gap_s < earliest_[i]) continue;
      if (latest - cost.gap_s <= std::max(gain[i], latest_[i])) continue;
      gain[i] = latest - cost.gap_s;
      next[i] = j;
    }
  }

  static std::vector<Bucket> follow(const std::vector<std::vector<Bucket>>& layers) {
    std::vector<Bucket> buckets;
    int64_t cut = 0;
    for (size_t k = layers.size(); k-- > 0;) {
      const auto bucket =
          std::lower_bound(layers[k].begin(), layers[k].end(), cut, [](const Bucket& b, int64_t first) { return b.first < first; });
      buckets.push_back(*bucket);
      cut += bucket->count;
    }
    return buckets;
  }

  // latest_[i] for any number of buckets, as if each were the first to be launched; minus infinity where F(i) is already later.
  void find_latest_ends() {
    latest_.assign(tensors_ + 1, -kInfinity);
    latest_[tensors_] = deadline_s_;
    for (size_t i = tensors_; i-- > 0;) {
      double best = -kInfinity;
      for (size_t j = i + 1; j <= tensors_; ++j) {
        const double bytes = bytes_before_[j] - bytes_before_[i];
        const CostBounds::Cell& cell = bounds_(bytes);
        const double launch = launch_[j] + overhead_s(1);
        if (latest_[j] - cell.gap(bytes) <= best || launch + cell.isolated(bytes) > latest_[j] || !allowed(i, j)) continue;
        const CallCost cost = costs_(bytes);
        if (launch + cost.isolated_s <= latest_[j]) best = std::max(best, latest_[j] - cost.gap_s);
      }
      latest_[i] = i > 0 && best < earliest_[i] ? -kInfinity : best;
    }
    latest_[0] = 0;  // nothing comes before; 0 is later than F(0)
  }

  // With overhead, bucket count by bucket count: the earliest end with exactly that many, at cuts from which the deadline can still be met
  // and which fewer buckets do not reach as early (whatever follows would be launched earlier and end no later).
  std::vector<Bucket> best_bucket_count() {
    std::vector<double> ends(tensors_ + 1, kInfinity);
    std::vector<double> earliest_with_fewer(tensors_ + 1, kInfinity);
    ends[0] = -kInfinity;
    std::vector<size_t> reached = {0};
    std::vector<std::vector<uint32_t>> parents;
    std::vector<double> total_s;  // by bucket count, from 1
    double best_s = deadline_s_;
    for (size_t calls = 1; calls <= tensors_ && compute_end_s(calls) <= best_s && !reached.empty(); ++calls) {
      parents.emplace_back(tensors_ + 1, 0);
      reached = add_bucket(calls, reached, ends, earliest_with_fewer, parents.back());
      total_s.push_back(std::max(compute_end_s(calls), ends[tensors_]));
      best_s = std::min(best_s, within_tolerance(total_s.back()));
    }
    const double least = total_s.empty() ? kInfinity : *std::min_element(total_s.begin(), total_s.end());
    if (least > deadline_s_) return parents_to_buckets();  // rounding, as above
    size_t calls = 1;
    while (total_s[calls - 1] > within_tolerance(least)) ++calls;
    return parents_to_buckets(parents, calls);
  }

  // reached: the cuts that calls - 1 buckets reach, ascending, and `ends` their ends; both become those of `calls`. The last cut, from
  // which nothing goes on, is not in the list.
  std::vector<size_t> add_bucket(size_t calls, const std::vector<size_t>& reached, std::vector<double>& ends,
                                 std::vector<double>& earliest_with_fewer, std::vector<uint32_t>& parent) {
    std::vector<double> next(tensors_ + 1, kInfinity);
    std::vector<size_t> next_reached;
    size_t before_j = 0;  // how many of the cuts reached lie before j
    for (size_t j = reached.front() + 1; j <= tensors_; ++j) {
      while (before_j < reached.size() && reached[before_j] < j) ++before_j;
      const double launch = launch_[j] + overhead_s(calls);
      double best = earliest_with_fewer[j];
      for (size_t r = before_j; r-- > 0;) {
        const size_t i = reached[r];
        const double bytes = bytes_before_[j] - bytes_before_[i];
        const CostBounds::Cell& cell = bounds_(bytes);
        const double least_from_here = launch + cell.least_isolated_from_here;
        if (least_from_here >= best || least_from_here > latest_[j]) break;  // and so for all larger buckets
        const double bound = std::max(launch + cell.isolated(bytes), ends[i] + cell.gap(bytes));
        if (bound >= best || bound > latest_[j] || !allowed(i, j)) continue;
        const CallCost cost = costs_(bytes);
        const double end = std::max(launch + cost.isolated_s, ends[i] + cost.gap_s);
        if (end >= best || end > latest_[j]) continue;
        best = next[j] = end;
        parent[j] = static_cast<uint32_t>(i);
      }
      if (next[j] == kInfinity) continue;
      earliest_with_fewer[j] = best;
      if (j < tensors_) next_reached.push_back(j);
    }
    ends = std::move(next);
    return next_reached;
  }

  std::vector<Bucket> parents_to_buckets() const {
    std::vector<Bucket> buckets;
    for (size_t j = tensors_; j > 0; j = parent_[j]) buckets.push_back(bucket_between(parent_[j], j));
    std::reverse(buckets.begin(), buckets.end());
    return buckets;
  }

  std::vector<Bucket> parents_to_buckets(const std::vector<std::vector<uint32_t>>& parents, size_t calls) const {
    std::vector<Bucket> buckets;
    size_t j = tensors_;
    for (size_t k = calls; k > 0; --k) {
      const size_t i = parents[k - 1][j];
      buckets.push_back(bucket_between(i, j));
      j = i;
    }
    std::reverse(buckets.begin(), buckets.end());
    return buckets;
  }

  static Bucket bucket_between(size_t i, size_t j) { return {static_cast<int64_t>(i), static_cast<int64_t>(j - i)}; }

  double end_of(const std::vector<Bucket>& buckets) {
    double end = -kInfinity;
    for (size_t k = 0; k < buckets.size(); ++k) {
      const auto i = static_cast<size_t>(buckets[k].first);
      const size_t j = i + static_cast<size_t>(buckets[k].count);
      const CallCost cost = costs_(bytes_before_[j] - bytes_before_[i]);
      end = std::max(launch_[j] + overhead_s(k + 1) + cost.isolated_s, end + cost.gap_s);
    }
    return std::max(compute_end_s(buckets.size()), end);
  }

  size_t tensors_;
  const SearchOptions& options_;
  double backward_s_;
  std::vector<double> bytes_before_;  // whole numbers below 2^53
  std::vector<double> launch_;        // of a bucket that ends at the cut, without overhead
  CachedCosts costs_;
  CostBounds bounds_;
  std::vector<double> earliest_;
  std::vector<size_t> parent_;
  std::vector<double> latest_;
  double deadline_s_ = 0;
};

}  // namespace

BucketPlan find_exact_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  return ExactSearch(profile, costs, options).run();
}

}  // namespace firkin
