// Sends the buckets of one step, in the plan's order, and waits for them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/gradient_buckets.h"

namespace firkin {

// Every bucket of a step is launched exactly once, in the same order on every rank: ranks that launch in different orders deadlock.
// Not thread-safe.
class BucketLauncher {
 public:
  BucketLauncher(ProcessGroup group, GradientHook hook) : group_(std::move(group)), hook_(std::move(hook)) {}

  // Starts a step.
  void begin(std::shared_ptr<const GradientBuckets> buckets);

  // A gradient is in its bucket: launches the buckets that are full, up to the first that is not.
  void tensor_placed(int64_t position);

  bool all_launched() const { return launched_ == states_.size(); }
  // The bucket that is next in launch order.
  int64_t next_bucket() const;
  void launch_next();

  // Waits for the bucket that was launched last, or for all. Throws RuntimeError when the collective failed.
  void wait_for_last();
  void wait_for_all();

  // Once all buckets of the step were waited for: lets go of them, and tells how they fared, in launch order.
  std::vector<BucketStats> end();

 private:
  using Clock = std::chrono::steady_clock;

  struct BucketState {
    int64_t missing = 0;  // gradients that are not in the bucket yet
    BucketReduction reduction;
    Clock::time_point launched_at;
    // Set by the backend's thread. Shared with it, because a failed step may be forgotten before the backend is done.
    std::shared_ptr<std::atomic<Clock::rep>> ended_at;
  };

  void wait_for(int64_t bucket);
  BucketState& state(int64_t bucket) { return states_[static_cast<size_t>(bucket)]; }
  int64_t bucket_at(size_t launch_index) const;

  ProcessGroup group_;
  GradientHook hook_;
  std::shared_ptr<const GradientBuckets> buckets_;
  std::vector<BucketState> states_;
  size_t launched_ = 0;
  Clock::time_point started_at_;
};

}  // namespace firkin
