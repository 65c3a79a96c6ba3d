// A bucket divided among the ranks: exchanged, summed, and gathered again slice by slice.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "firkin/comm/process_group.h"
#include "firkin/ddp/options.h"

namespace firkin {

// Elements of the bucket in each rank's slice, one slice behind the other, in the order of ranks. Empty: each has as many.
using SliceLengths = std::vector<int64_t>;

struct ExchangedSlices {
  SliceLengths lengths;
  // What the ranks have sent of this rank's slice, in their order, or, of a bucket that goes in pieces, free memory: then what they have
  // sent is in the bucket's own. Undefined: nothing is to be summed.
  at::Tensor received;
};

// By the memory of a bucket.
using SlicesOfBuckets = std::unordered_map<const void*, ExchangedSlices>;

struct SliceRange {
  int64_t begin = 0, count = 0;
};

// Of this rank's slice, in a bucket of so many elements.
SliceRange slice_range(const ProcessGroup& group, int64_t elements, const SliceLengths& lengths = {});

// This rank's slice, a view.
at::Tensor slice_of(const ProcessGroup& group, const at::Tensor& bucket, const SliceLengths& lengths = {});

// Sends every rank its slice of a bucket: half the bytes of an all-reduce. With NCCL a reduce-scatter, which sums on the way. With Gloo,
// and where a bucket is not divided evenly (its lengths are in `slices`), an all-to-all, summed when it is there: what comes is kept there.
GradientHook exchange_slices(std::shared_ptr<SlicesOfBuckets> slices);

// Makes this rank's slice of a bucket the sum of what came for it, if anything did, times `scale`. In the order of ranks: with two of them
// the sum is an all-reduce's to the last bit.
void sum_slices(const ProcessGroup& group, const at::Tensor& bucket, SlicesOfBuckets& slices, double scale = 1);

// An all-gather of a bucket's slices on its way.
class SlicesGather {
 public:
  SlicesGather() = default;                                                                             // of nothing
  SlicesGather(const ProcessGroup& group, const at::Tensor& bucket, const SliceLengths& lengths = {});  // starts it
  bool is_under_way() const { return !calls_.empty(); }
  void wait(const ProcessGroup& group, c10::function_ref<std::string()> what);  // until the bucket has the slices of all

 private:
  std::vector<Work> calls_;
};

}  // namespace firkin
