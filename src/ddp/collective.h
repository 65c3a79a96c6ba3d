// What becomes of a full bucket: an object that starts its reduction, and finishes it when it has come.
#pragma once

#include <cstdint>

#include "buckets.h"
#include "firkin/ddp/options.h"

namespace firkin {

// Launched for every bucket of a step in the same order on every rank. A reduction may have a part behind both, after the step: those of
// SlicedBuckets do. Not thread-safe.
class BucketCollective {
 public:
  virtual ~BucketCollective() = default;

  virtual void begin(const GradientBuckets& /*buckets*/) {}  // a step
  // Starts the reduction of what buckets.wire(bucket) holds on the current stream.
  virtual BucketReduction launch(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) = 0;
  // When it has come: what came becomes the bucket's content.
  virtual void finish(const ProcessGroup& /*group*/, const GradientBuckets& /*buckets*/, int64_t /*bucket*/) {}
  // Instead of that, for all that was launched, when all of it has come: the step has failed.
  virtual void drop() {}
};

// What a gradient hook starts: the sum, unless it is the user's own.
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
