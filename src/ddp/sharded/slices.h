// Buckets that are divided among the ranks: exchanged and summed slice by slice in backward, and gathered again after the step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ddp/collective.h"
#include "firkin/comm/process_group.h"

namespace firkin {

// Elements of the bucket in each rank's slice, one slice behind the other, in the order of ranks. Empty: each has as many.
using SliceLengths = std::vector<int64_t>;

struct SliceRange {
  int64_t begin = 0, count = 0;
};

// One bucket's collective. Its methods are called in this order, on every rank alike; `bucket` is always the same memory. Not thread-safe.
class SlicedBucket {
 public:
  explicit SlicedBucket(SliceLengths lengths = {}) : lengths_(std::move(lengths)) {}

  // This rank's slice of a bucket of so many elements; and the slice itself, a view.
  SliceRange own_range(const ProcessGroup& group, int64_t elements) const;
  at::Tensor own(const ProcessGroup& group, const at::Tensor& bucket) const;

  // Sends every rank its slice: half the bytes of an all-reduce. With NCCL a reduce-scatter, which sums on the way. With Gloo, and where
  // the bucket is not divided evenly, an all-to-all, whose parts are kept here.
  BucketReduction launch(const ProcessGroup& group, const at::Tensor& bucket);
  // When it has come: this rank's slice is the sum, taken in the order of ranks; with two of them it is an all-reduce's to the last bit.
  void finish(const ProcessGroup& group, const at::Tensor& bucket);
  // Instead, when it has come: the sum is of no use.
  void drop();

  // Late: starts an all-gather of the slices.
  void gather(const ProcessGroup& group, const at::Tensor& bucket);
  bool is_gathering() const { return !gathers_.empty(); }
  void wait_for_gather(const ProcessGroup& group, c10::function_ref<std::string()> what);  // until the bucket has the slices of all

 private:
  SliceLengths lengths_;
  // What the ranks have sent of this rank's slice, in their order, or, of a bucket that goes in pieces, free memory: then what they have
  // sent is in the bucket's own. Undefined: nothing is to be summed.
  at::Tensor received_;
  std::vector<Work> gathers_;
};

// All buckets of a wrapped module.
class SlicedBuckets final : public BucketCollective {
 public:
  // Anew: nothing is under way.
  void divide(std::vector<SlicedBucket> buckets) { buckets_ = std::move(buckets); }
  SlicedBucket& operator[](int64_t bucket) { return buckets_[static_cast<size_t>(bucket)]; }
  const SlicedBucket& operator[](int64_t bucket) const { return buckets_[static_cast<size_t>(bucket)]; }
  bool is_any_gathering() const;

  BucketReduction launch(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;
  void finish(const ProcessGroup& group, const GradientBuckets& buckets, int64_t bucket) override;
  void drop() override;

 private:
  std::vector<SlicedBucket> buckets_;
};

}  // namespace firkin
