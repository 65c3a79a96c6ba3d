// Sends the buckets of one step, in the plan's order, and waits for them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bucket_flight.h"
#include "firkin/ddp/data_parallel.h"
#include "firkin/ddp/gradient_buckets.h"

namespace firkin {

// Every bucket of a step is launched exactly once, in the same order on every rank: ranks that launch in different orders deadlock.
// Not thread-safe.
class BucketLauncher {
 public:
  // names: of the tensors, in the order in which they lie in the buckets; for errors.
  BucketLauncher(ProcessGroup group, GradientHook hook, std::unique_ptr<GradientBuckets> buckets, std::vector<std::string> names);

  GradientBuckets& buckets() { return *buckets_; }

  void begin(int64_t step);

  // A gradient is in its bucket: launches the buckets that are full, up to the first that is not.
  void tensor_placed(int64_t position);

  bool all_launched() const { return launched_ == flights_.size(); }
  size_t launched() const { return launched_; }  // buckets of this step, so far
  // The bucket that is next in launch order.
  int64_t next_bucket() const { return bucket_at(launched_); }
  void launch_next();

  // Waits for the bucket that was launched last. Throws as firkin::wait() does.
  void wait_for_last(c10::function_ref<std::string()> what) { flight(bucket_at(launched_ - 1)).wait(group_, what); }

  // Waits for a bucket; what came goes to the gradients' own dtype and counts as used. Once a step. Throws as firkin::wait() does.
  void receive(int64_t bucket, c10::function_ref<std::string()> what);

  // Buckets of the step that were launched and not received, in launch order.
  std::vector<int64_t> not_received() const;
  bool is_received(int64_t bucket) const { return flight(bucket).state() == BucketFlight::State::kConsumed; }
  // The sum is there: receive() would not wait.
  bool has_come(int64_t bucket) const { return !flight(bucket).is_pending(); }

  // How the buckets fared when they were received last, in launch order.
  const std::vector<BucketStats>& stats() const { return stats_; }

  // From the next step on; between steps, everything received. order: as BucketPlan::launch_order.
  void set_launch_order(std::vector<int64_t> order);

  // "bucket 3 (blocks.2.w1.weight and 4 more, 4.2 MiB)": the first in launch order whose sum is not there. Empty when all are there.
  std::string first_pending() const;

 private:
  BucketFlight& flight(int64_t bucket) { return flights_[static_cast<size_t>(bucket)]; }
  const BucketFlight& flight(int64_t bucket) const { return flights_[static_cast<size_t>(bucket)]; }
  int64_t bucket_at(size_t launch_index) const;
  std::string describe(int64_t bucket) const;

  ProcessGroup group_;
  GradientHook hook_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<std::string> names_;
  std::vector<int64_t> launch_order_;  // empty: as they lie
  std::vector<size_t> launch_index_;   // of each bucket
  std::vector<BucketFlight> flights_;
  std::vector<BucketStats> stats_;
  size_t launched_ = 0;
  BucketFlight::Clock::time_point started_at_;
};

}  // namespace firkin
