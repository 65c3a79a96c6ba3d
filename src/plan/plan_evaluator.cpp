#include "plan_evaluator.h"

#include <algorithm>
#include <limits>

namespace firkin {
namespace {

bool same_points(const CostCurve& a, const CostCurve& b) {
  return std::equal(a.points().begin(), a.points().end(), b.points().begin(), b.points().end(),
                    [](const CostPoint& p, const CostPoint& q) { return p.bytes == q.bytes && p.seconds == q.seconds; });
}

}  // namespace

CachedCosts::CachedCosts(const CommCosts& costs)
    : costs_(costs), same_(same_points(costs.isolated, costs.gap)), entries_(size_t{1} << kSlotBits) {}

PlanEvaluator::PlanEvaluator(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options)
    : profile_(profile), costs_(costs), options_(options), cached_(costs), bytes_before_(profile.bytes.size() + 1, 0) {
  for (size_t i = 0; i < profile.bytes.size(); ++i) bytes_before_[i + 1] = bytes_before_[i] + profile.bytes[i];
}

double PlanEvaluator::end_s(std::span<const Bucket> buckets, double give_up_s) {
  if (options_.channels > 1 || options_.compute_slowdown != 1 || options_.comm_slowdown != 1) {
    return simulate(profile_, {.buckets = {buckets.begin(), buckets.end()}}, costs_, options_).end_s;
  }
  const auto bucket_count = static_cast<double>(buckets.size());
  const double compute_end =
      profile_.backward_s + options_.overhead_s * bucket_count + options_.copy_s_per_byte * static_cast<double>(bytes_before_.back());
  double end = -std::numeric_limits<double>::infinity();
  double calls = 0;
  for (const Bucket& bucket : buckets) {
    calls += 1;
    const auto last = static_cast<size_t>(bucket.first + bucket.count);
    const double launch =
        profile_.ready_s[last - 1] + options_.copy_s_per_byte * static_cast<double>(bytes_before_[last]) + options_.overhead_s * calls;
    const CallCost cost = cached_(static_cast<double>(bytes(bucket)));
    end = std::max(launch + cost.isolated_s, end + cost.gap_s);
    if (end > give_up_s) return end;  // it never comes down again
  }
  return std::max(compute_end, end);
}

}  // namespace firkin
