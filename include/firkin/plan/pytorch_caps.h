// A plan as an argument of PyTorch's DistributedDataParallel: bucket_cap_mb_list (PyTorch 2.13 and later).
//
// All of it holds for gradients of one dtype on one device. Of several, PyTorch fills a bucket for each (dtype, device), and each goes
// through the list on its own: then the caps make other buckets than the plan's, and this does not see it, for a profile has no dtypes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "firkin/plan/bucket_plan.h"

namespace firkin {

// PyTorch's own rule with a list: append, close bucket k once its size reaches caps_bytes[k]; the last cap is for all further buckets.
// The list is in gradient-ready order once PyTorch has rebuilt its buckets, after the first backward.
// Throws InputError when the list is empty, a cap is negative, or a size is negative.
BucketPlan assign_buckets_by_cap_list(std::span<const int64_t> sizes, std::span<const int64_t> caps_bytes);

struct PyTorchCaps {
  std::vector<double> mib;  // bucket_cap_mb_list: for each bucket a round cap that it reaches with its last tensor; whole bytes
  // Whether PyTorch's rule makes exactly the plan's buckets of it. False only when a bucket ends with, or consists of, tensors of zero
  // bytes.
  bool reproduces_plan = false;
};

// Of the plan's buckets; its launch order has no counterpart in PyTorch. Throws InputError when the plan splits a tensor.
PyTorchCaps pytorch_caps(const BucketPlan& plan, std::span<const int64_t> sizes);

}  // namespace firkin
