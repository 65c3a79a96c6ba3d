// A communication hook of PyTorch's own kind in a step: called for every bucket, waited for, its results written into the buckets.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <vector>

#include "firkin/ddp/options.h"

#include <torch/csrc/distributed/c10d/comm.hpp>

namespace firkin {

// The calls of one hook in one step, in launch order. A hook can fail when it is called, and again later in what it has chained to its
// future. After a failing call it is not called again in this step, which has failed. Not thread-safe.
class CommHookCalls {
 public:
  explicit CommHookCalls(std::shared_ptr<c10d::CommHookInterface> hook) : hook_(std::move(hook)) {}

  // A step.
  void begin();
  // Never throws: see error().
  BucketReduction start(c10d::GradBucket bucket);
  // Of the call that failed; null: none did.
  const std::exception_ptr& error() const { return error_; }
  // Calls that returned. Where ranks differ in it, some wait for a collective that never comes.
  int64_t count() const { return static_cast<int64_t>(futures_.size()); }
  // What the call's future holds becomes the content of `buffer`. Throws what failed in the future, and InputError for a result of another
  // size. Once for each call, when its reduction is over.
  void write_result(size_t call, const at::Tensor& buffer);

 private:
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;
  std::exception_ptr error_;
};

}  // namespace firkin
