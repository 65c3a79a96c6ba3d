// T(b): the backward time as a function of the bucket cap, and the best cap.
#pragma once

#include <span>
#include <vector>

#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/timeline.h"

namespace firkin {

struct SweepPoint {
  int64_t cap_bytes = 0;
  int64_t buckets = 0;
  double backward_s = 0;  // backward with its communication
  double exposed_s = 0;
};

// One point per cap, in the order given. `options.cap_bytes` is replaced by each cap.
std::vector<SweepPoint> sweep_caps(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                   std::span<const int64_t> caps, const SimulationOptions& simulation = {});

}  // namespace firkin
