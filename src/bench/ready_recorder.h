// Notes when each gradient of a backward pass becomes ready.
#pragma once

#include <memory>
#include <vector>

#include "ddp/buckets.h"
#include "firkin/ddp/module_parameters.h"
#include "workload/device_clock.h"

namespace firkin {

enum class ReadyWhen {
  kAccumulated,  // autograd has finished the gradient
  kInBucket,     // and it was written into its bucket, as DataParallel does, so that it could be sent
};

// Hooks on all parameters for as long as it lives.
class ReadyRecorder {
 public:
  // Throws what ParameterHooks throws.
  ReadyRecorder(const std::vector<NamedTensor>& parameters, ReadyWhen when);

  // Per parameter, of the last backward that reached it.
  const std::vector<DeviceTime>& ready() const { return ready_; }

 private:
  std::unique_ptr<GradientBuckets> buckets_;  // none for kAccumulated
  std::vector<DeviceTime> ready_;
  ParameterHooks hooks_;  // last, so that no hook runs when the rest is gone
};

}  // namespace firkin
