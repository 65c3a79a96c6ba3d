// Makes the sum of a bucket over the ranks: by an all-reduce, or by a communication hook of PyTorch's. In sharded/ is a
// third way: a reduce-scatter, and a gather when the optimiser has stepped.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "buckets.h"
#include "firkin/comm/process_group.h"
#include "firkin/ddp/options.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace firkin {

// What a reduction needs of the buckets, and what becomes of its sums.
struct BucketForm {
  double scale = 1;       // what a gradient is multiplied by on its way into its bucket
  int64_t shared_by = 0;  // as in GradientBuckets
  // Whether the sums become the parameters' gradients, as views into the buckets. If not, each rank's parts of the
  // parameters are defined by the buckets, and the first step does not change these.
  bool holds_gradients = true;
};

// Sums the buckets of one wrapped module. In a step begin() comes first, then start() once for every bucket, in the
// same order on every rank. Then either finish() follows for every bucket or, if the step has failed, settle(). (The
// strategy none has no reduction: it sends nothing.) Not thread-safe.
class Reduction {
 public:
  virtual ~Reduction() = default;

  virtual BucketForm form(const ProcessGroup& group) const { return {.scale = 1.0 / group.size}; }

  virtual void begin(const GradientBuckets& /*buckets*/) {}
  // Starts to sum buckets.wire(bucket), behind what is queued on the current stream. Null: there is nothing to wait
  // for.
  virtual Work start(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) = 0;
  // Once the collective is complete: makes the sum the bucket's content.
  virtual void finish(const ProcessGroup& /*group*/, const GradientBuckets& /*buckets*/, int64_t /*bucket*/) {}
  // Once all collectives are complete that start() has returned: waits for others behind them, and makes no sums.
  virtual void settle(const ProcessGroup& /*group*/) {}

  // Whether start() and finish() may fail on one rank alone. No rank may then use a sum before all ranks have theirs.
  virtual bool may_fail_alone() const { return false; }
  // The error of the start() that failed in this step; null if none did.
  virtual std::exception_ptr error() const { return nullptr; }
  // If start() may fail alone: for how many buckets it has not, in this step. If ranks differ in this number, some wait
  // for collectives that others never start.
  virtual int64_t started() const { return 0; }
};

class AllReduction final : public Reduction {
 public:
  Work start(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override {
    return start_all_reduce(group, buckets.wire(bucket));
  }
};

// Calls a communication hook of PyTorch's for each bucket. The hook may fail when it is called, or later by its future.
// After a failed call it is not called again in this step. Not thread-safe.
class CommHookReduction final : public Reduction {
 public:
  explicit CommHookReduction(std::shared_ptr<c10d::CommHookInterface> hook) : hook_(std::move(hook)) {}

  // The hook itself divides by the number of ranks, and expects buckets without gaps.
  BucketForm form(const ProcessGroup& /*group*/) const override { return {.scale = 1, .shared_by = 1}; }

  void begin(const GradientBuckets& buckets) override;
  // Never throws: see error().
  Work start(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;
  // Throws the error of the hook's future, and InputError for a result of another size.
  void finish(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;

  bool may_fail_alone() const override { return true; }
  std::exception_ptr error() const override { return error_; }
  int64_t started() const override { return started_; }

 private:
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;  // one per bucket
  int64_t started_ = 0;
  std::exception_ptr error_;
};

// For the strategies that sum whole buckets.
std::shared_ptr<Reduction> make_reduction(const GradientHook& hook);

}  // namespace firkin
