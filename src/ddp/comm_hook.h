// A communication hook of PyTorch's own kind in a step: called for every bucket, waited for, its results written into
// the buckets.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "collective.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace firkin {

// Calls a communication hook for buckets. A hook can fail when it is called, and later in what it has chained to its
// future. After a call that failed, and with it the step, the hook is not called again in this step. Not thread-safe.
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
