// What happens to a full bucket: the plain all-reduce, a compressed one, or the user's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "firkin/comm/process_group.h"

namespace firkin {

// A reduction of one bucket under way. `finish` blocks until the bucket holds the result; it runs on the thread that completes the step.
struct BucketReduction {
  Work work;                     // for completion times; may be null
  std::function<void()> finish;  // called first, and then `work` is waited for; may be empty
};

struct GradientHook {
  std::string name;
  // Starts the reduction of `bucket`, a contiguous 1-d tensor that holds this rank's gradients divided by the world size, and must end up
  // holding the sum over the ranks. Called in the same order on every rank, from the thread that runs backward. When it throws, the group
  // is lost: what the other ranks wait for cannot be sent.
  std::function<BucketReduction(const ProcessGroup& group, at::Tensor bucket)> start;
  // What `start` gets, and the ranks exchange: float32 and float64 gradients are written in this dtype into a buffer that is kept from step
  // to step, and converted back afterwards. Without: the gradients' own dtype.
  std::optional<at::ScalarType> wire_dtype = std::nullopt;
  // Bytes that this rank hands to the collective for what `start` gets. Without: all of it.
  std::function<int64_t(const at::Tensor& bucket)> bytes_on_wire = nullptr;
};

// The sum in the gradients' own dtype.
GradientHook plain_all_reduce();

// The sum in bfloat16 or float16: half the bytes of float32, with their precision (8 and 11 significant bits). float16 overflows above
// 65504. Buckets that are not float32 or float64 are summed as they are.
GradientHook bf16_compression();
GradientHook fp16_compression();

}  // namespace firkin
