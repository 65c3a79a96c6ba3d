#include "firkin/plan/cap_sweep.h"

namespace firkin {

std::vector<SweepPoint> sweep_caps(const TensorProfile& profile, const CommCosts& costs, const CapOptions& options,
                                   std::span<const int64_t> caps, const SimulationOptions& simulation) {
  std::vector<SweepPoint> points;
  points.reserve(caps.size());
  for (const int64_t cap : caps) {
    CapOptions with_cap = options;
    with_cap.cap_bytes = cap;
    const BucketPlan plan = assign_buckets(profile.bytes, with_cap);
    const Timeline timeline = simulate(profile, plan, costs, simulation);
    points.push_back({.cap_bytes = cap,
                      .buckets = static_cast<int64_t>(plan.buckets.size()),
                      .backward_s = timeline.end_s,
                      .exposed_s = timeline.exposed_s});
  }
  return points;
}

}  // namespace firkin
