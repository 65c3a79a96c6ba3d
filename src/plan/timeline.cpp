#include "firkin/plan/timeline.h"

#include <algorithm>
#include <limits>

namespace firkin {

Timeline simulate(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs) {
  Timeline timeline;
  timeline.compute_end_s = profile.backward_s;
  timeline.buckets.reserve(plan.buckets.size());
  double launch_s = 0;  // buckets launch in plan order, so one that is not ready holds up those behind it
  double previous_end_s = -std::numeric_limits<double>::infinity();
  for (size_t k = 0; k < plan.buckets.size(); ++k) {
    const Bucket& bucket = plan.buckets[plan.launch_order.empty() ? k : static_cast<size_t>(plan.launch_order[k])];
    BucketSpan span;
    for (int64_t i = bucket.first; i < bucket.first + bucket.count; ++i) span.bytes += profile.bytes[static_cast<size_t>(i)];
    span.ready_s = profile.ready_s[static_cast<size_t>(bucket.first + bucket.count - 1)];
    launch_s = std::max(launch_s, span.ready_s);
    const auto bytes = static_cast<double>(span.bytes);
    span.start_s = std::max(launch_s, previous_end_s);
    span.end_s = std::max(launch_s + costs.isolated(bytes), previous_end_s + costs.gap(bytes));
    previous_end_s = span.end_s;
    timeline.buckets.push_back(span);
  }
  timeline.end_s = std::max(timeline.compute_end_s, previous_end_s);
  timeline.exposed_s = timeline.end_s - timeline.compute_end_s;
  return timeline;
}

}  // namespace firkin
