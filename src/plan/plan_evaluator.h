// The end time of many plans of one profile, without their timelines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "firkin/plan/timeline.h"

namespace firkin {

// a(x) and g(x) of one size.
struct CallCost {
  double isolated_s = 0;
  double gap_s = 0;
};

// Both curves, with a memory of sizes seen before: the tensors of a network have few distinct sizes, so a search meets the same sums often.
class CachedCosts {
 public:
  explicit CachedCosts(const CommCosts& costs);

  CallCost operator()(double bytes) {
    Entry& entry = entries_[slot(bytes)];
    if (entry.bytes != bytes) entry = {bytes, {costs_.isolated(bytes), same_ ? 0 : costs_.gap(bytes)}};
    return same_ ? CallCost{entry.cost.isolated_s, entry.cost.isolated_s} : entry.cost;
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
  bool same_;  // g is a
  std::vector<Entry> entries_;
};

class PlanEvaluator {
 public:
  PlanEvaluator(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options);

  // What simulate() gives as end_s for buckets launched in ready order, or, when that is above `give_up_s`, anything above it.
  double end_s(std::span<const Bucket> buckets, double give_up_s);

  int64_t bytes(const Bucket& bucket) const {
    return bytes_before_[static_cast<size_t>(bucket.first + bucket.count)] - bytes_before_[static_cast<size_t>(bucket.first)];
  }

 private:
  const TensorProfile& profile_;
  const CommCosts& costs_;
  const SimulationOptions& options_;
  CachedCosts cached_;
  std::vector<int64_t> bytes_before_;  // of the tensors before tensor i
};

}  // namespace firkin
