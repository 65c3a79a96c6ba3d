// Reduces full buckets: starts the reduction of a bucket, and finishes it when the data have arrived.
#pragma once

#include <cstdint>

#include "buckets.h"
#include "firkin/ddp/options.h"

namespace firkin {

// launch() is called for every bucket of a step, in the same order on every rank. A reduction may have a third part
// that comes after the step, as with SlicedBuckets. Not thread-safe.
class BucketCollective {
 public:
  virtual ~BucketCollective() = default;

  virtual void begin(const GradientBuckets& /*buckets*/) {}  // a step begins
  // Starts the reduction of buckets.wire(bucket), as it is on the current stream.
  virtual BucketReduction launch(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) = 0;
  // Once the reduction has arrived: makes its result the bucket's content.
  virtual void finish(const ProcessGroup& /*group*/, const GradientBuckets& /*buckets*/, int64_t /*bucket*/) {}
  // Instead of finish(), if the step has failed: for all launched reductions, once they have arrived.
  virtual void drop() {}
};

// The reduction of a gradient hook: the sum, unless the hook is the user's own.
class HookedReduction final : public BucketCollective {
 public:
  // hook: must outlive this.
  explicit HookedReduction(const GradientHook& hook) : hook_(hook) {}
  BucketReduction launch(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override {
    return hook_.start(group, buckets.wire(bucket));
  }

 private:
  const GradientHook& hook_;
};

}  // namespace firkin
