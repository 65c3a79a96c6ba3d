// Reduces full buckets: starts the reduction of a bucket, and finishes it when the data have arrived.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "buckets.h"
#include "firkin/ddp/options.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

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

// Calls a communication hook of PyTorch's own kind for buckets. A hook can fail when it is called, and later in what it
// has chained to its future. After a call that failed, and with it the step, the hook is not called again in this step.
// Not thread-safe.
class CommHookCalls final : public BucketCollective {
 public:
  explicit CommHookCalls(std::shared_ptr<c10d::CommHookInterface> hook) : hook_(std::move(hook)) {}

  void begin(const GradientBuckets& buckets) override;
  // Never throws: see error().
  BucketReduction launch(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;
  // Throws the error of the call's future, and InputError for a result of another size.
  void finish(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;

  // The error of the call that failed; null if none did.
  const std::exception_ptr& error() const { return error_; }
  // How many calls returned. If ranks differ in it, some wait for a collective that never comes.
  int64_t count() const { return count_; }

 private:
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;  // one per bucket
  int64_t count_ = 0;
  std::exception_ptr error_;
};

}  // namespace firkin
