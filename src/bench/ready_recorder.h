// Notes when each gradient of a backward pass becomes ready.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "firkin/ddp/gradient_buckets.h"
#include "firkin/ddp/module_parameters.h"
#include "firkin/ddp/parameter_hooks.h"
#include "firkin/plan/tensor_profile.h"

namespace firkin {

enum class ReadyWhen {
  kAccumulated,  // autograd has finished the gradient
  kInBucket,     // and it was written into its bucket, as DataParallel does, so that it could be sent
};

// Hooks on all parameters for as long as it lives.
class ReadyRecorder {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Throws what ParameterHooks throws.
  ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when);

  // Per parameter, of the last backward that reached it.
  const std::vector<Time>& ready() const { return ready_; }

 private:
  std::unique_ptr<GradientBuckets> buckets_;  // none for kAccumulated
  std::vector<Time> ready_;
  ParameterHooks hooks_;  // last, so that no hook runs when the rest is gone
};

// Per column of rows of equal length.
std::vector<double> column_medians(const std::vector<std::vector<double>>& rows);

// Indices by ascending time; equal times in their own order.
std::vector<int64_t> order_of_times(const std::vector<double>& times);

// ready_s: per parameter, seconds from the start of backward. Without the forward pass.
TensorProfile profile_in_ready_order(const std::vector<NamedTensor>& parameters, const std::vector<double>& ready_s, double backward_s);

}  // namespace firkin
