#include "firkin/plan/baselines.h"

#include <algorithm>
#include <limits>

#include "firkin/plan/bucket_assignment.h"

namespace firkin {

BucketPlan mg_wfbp_plan(const TensorProfile& profile, const CostCurve& isolated) {
  const double startup_s = fit_alpha_beta(isolated.points()).alpha_s;
  BucketPlan plan;
  Bucket open;
  double open_bytes = 0;
  double previous_end_s = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < profile.bytes.size(); ++i) {
    ++open.count;
    open_bytes += static_cast<double>(profile.bytes[i]);
    const double start_s = std::max(previous_end_s, profile.ready_s[i]);
    const double comm_s = isolated(open_bytes);
    const bool last = i + 1 == profile.bytes.size();
    if (!last && profile.ready_s[i + 1] - start_s < std::min(startup_s, comm_s)) continue;
    previous_end_s = start_s + comm_s;
    plan.buckets.push_back(open);
    open = {.first = open.first + open.count, .count = 0};
    open_bytes = 0;
  }
  return plan;
}

std::vector<Baseline> baselines(const TensorProfile& profile, const CommCosts& costs) {
  const auto tensors = static_cast<int64_t>(profile.bytes.size());
  BucketPlan one_bucket, one_per_tensor;
  if (tensors > 0) one_bucket.buckets = {{0, tensors}};
  for (int64_t i = 0; i < tensors; ++i) one_per_tensor.buckets.push_back({i, 1});
  const CapOptions pytorch = {.cap_bytes = 25 * kMiB, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = 1 * kMiB};
  const CapOptions horovod = {.cap_bytes = 128 * kMiB, .rule = CapRule::kAtMost};
  return {{"pytorch", "25 MiB, close-when-full, first bucket 1 MiB", assign_buckets(profile.bytes, pytorch)},
          {"horovod", "128 MiB, at-most (without its cycle time)", assign_buckets(profile.bytes, horovod)},
          {"one_bucket", "all gradients together", std::move(one_bucket)},
          {"one_per_tensor", "each gradient alone", std::move(one_per_tensor)},
          {"mg_wfbp", "merged while waiting costs less than a start-up", mg_wfbp_plan(profile, costs.isolated)}};
}

}  // namespace firkin
