// The local search behind find_ordered_plan().
#pragma once

#include <cstdint>
#include <vector>

#include "firkin/plan/ordered_plan.h"
#include "simulator.h"

namespace firkin {

struct OrderedCandidate {
  std::vector<Bucket> buckets;
  std::vector<int64_t> order;  // a permutation, also when it is the ready order
  double period_s = 0;
};

class OrderedSearch {
 public:
  OrderedSearch(const TensorProfile& profile, const CommCosts& costs, const OrderedSearchOptions& options);

  // Launched by need, patiently or not, or, if that is asked for, in ready order: what is best.
  OrderedCandidate launched(std::vector<Bucket> buckets, bool try_ready_order);

  // Moves to better plans until no move improves or `effort` is used up, and then to fewer buckets within the tolerance.
  // `effort`: of simulations, in buckets and tensors that they go over.
  void improve(OrderedCandidate& candidate, int64_t effort);

  // Whether no plan is better by more than the tolerance.
  bool at_bound(const OrderedCandidate& candidate) const { return candidate.period_s <= bound_s_ * (1 + options_.tolerance); }

  // Whether they are not too many, and no bucket of several tensors is too large.
  bool allowed(const std::vector<Bucket>& buckets) const;

  // The parts into which a tensor larger than `cap_bytes` is split so that none is larger, as far as the options allow.
  int64_t parts_for(int64_t tensor_bytes, int64_t cap_bytes) const;

 private:
  using Buckets = std::vector<Bucket>;

  bool few_enough(const Buckets& buckets) const { return static_cast<int64_t>(buckets.size()) <= options_.most_buckets; }
  bool accept(Buckets buckets, OrderedCandidate& candidate);
  bool merge_once(OrderedCandidate& candidate, size_t k);
  bool shift_once(OrderedCandidate& candidate, size_t k);
  bool cut_once(OrderedCandidate& candidate, size_t k);
  bool split_once(OrderedCandidate& candidate, size_t k);
  bool improve_buckets(OrderedCandidate& candidate);
  bool improve_order(OrderedCandidate& candidate);
  void merge_within_tolerance(OrderedCandidate& candidate);
  bool small_enough(const Bucket& bucket) const { return bucket.count == 1 || run_.bytes(bucket) <= options_.largest_bucket_bytes; }

  const TensorProfile& profile_;
  const OrderedSearchOptions& options_;
  double bound_s_;
  Simulator run_;
  int64_t effort_left_ = 0;
};

}  // namespace firkin
