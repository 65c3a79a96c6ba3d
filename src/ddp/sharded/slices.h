// Buckets that are divided into slices, one for each rank: in backward each rank sums its own, and after the
// optimiser's step the slices are gathered again.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/reduction.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// The elements in each rank's slice of a bucket. Slices follow each other in the order of ranks. Empty if all are
// equally long.
using SliceLengths = std::vector<int64_t>;

struct SliceRange {
  int64_t begin = 0, count = 0;
};

// The collectives of one bucket. Call them in this order, on every rank alike, and always with the same `bucket`. Not
// thread-safe.
class SlicedBucket {
 public:
  explicit SlicedBucket(SliceLengths lengths = {}) : lengths_(std::move(lengths)) {}

  // Where this rank's slice is in a bucket of so many elements, and a view of it.
  SliceRange own_range(const ProcessGroup& group, int64_t elements) const;
  at::Tensor own(const ProcessGroup& group, const at::Tensor& bucket) const;

  // Sends every rank its slice, in half the bytes of an all-reduce. With NCCL this is a reduce-scatter, which sums on
  // the way. With Gloo, or if slices are unequally long, it is an all-to-all, whose result is kept here.
  Work start(const ProcessGroup& group, const at::Tensor& bucket);
  // Once that is complete: sums this rank's slice in the order of ranks. On two ranks the sum equals an all-reduce's to
  // the last bit.
  void finish(const ProcessGroup& group, const at::Tensor& bucket);
  // Instead of finish(), in a step that has failed: waits for the pieces, and sums nothing.
  void settle(const ProcessGroup& group);

  // After the step: starts an all-gather of the slices.
  void gather(const ProcessGroup& group, const at::Tensor& bucket);
  bool is_gathering() const { return !gathers_.empty(); }
  // Waits until the bucket has the slices of all ranks.
  void wait_for_gather(const ProcessGroup& group, c10::function_ref<std::string()> what);

 private:
  void wait_for_pieces(const ProcessGroup& group);

  SliceLengths lengths_;
  std::vector<Work> pieces_;  // what start() has started, except the last, which it returns
  // What each rank has sent for this rank's slice, in the order of ranks. If the bucket travels in pieces, that is in
  // the bucket itself, and this is where finish() sums. Undefined if there is nothing to sum.
  at::Tensor received_;
  std::vector<Work> gathers_;
};

// The reduction of the strategy sharded: every rank gets the sum of its slice of each bucket.
class SlicedReduction final : public Reduction {
 public:
  // Replaces the buckets, while nothing is in flight.
  void divide(std::vector<SlicedBucket> buckets) { buckets_ = std::move(buckets); }
  SlicedBucket& operator[](int64_t bucket) { return buckets_[static_cast<size_t>(bucket)]; }
  bool is_any_gathering() const { return std::ranges::any_of(buckets_, &SlicedBucket::is_gathering); }

  BucketForm form(const ProcessGroup& group) const override {
    return {.scale = 1.0 / group.size, .shared_by = group.size, .holds_gradients = false};
  }
  Work start(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override {
    return (*this)[bucket].start(group, buckets.wire(bucket));
  }
  void finish(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override {
    (*this)[bucket].finish(group, buckets.wire(bucket));
  }
  void settle(const ProcessGroup& group) override {
    for (SlicedBucket& bucket : buckets_) bucket.settle(group);
  }

 private:
  std::vector<SlicedBucket> buckets_;
};

}  // namespace firkin
