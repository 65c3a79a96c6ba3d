#include "firkin/plan/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "firkin/base/error.h"
#include "pipeline_run.h"

namespace firkin {
namespace {

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double computation_s(const TensorProfile& profile, const SimulationOptions& options, size_t calls) {
  return profile.forward_s + profile.backward_s + sum(profile.update_s) +
         options.copy_s_per_byte * static_cast<double>(profile.total_bytes()) + options.overhead_s * static_cast<double>(calls);
}

// The least of a(x) / x for x up to `bytes`. Between the points a power of x, and beyond them a line: the least is at a point or at the
// end.
double least_s_per_byte(const CostCurve& curve, double bytes) {
  double least = curve(bytes) / bytes;
  for (const CostPoint& point : curve.points()) {
    const auto size = static_cast<double>(point.bytes);
    if (size < bytes) least = std::min(least, point.seconds / size);
  }
  return least;
}

}  // namespace

void check_options(const PipelineOptions& options) {
  check_options(options.simulation);
  if (!std::isfinite(options.agreement_s) || options.agreement_s < 0) {
    throw InputError(fmt::format("the time to agree is {}; expected at least 0", options.agreement_s));
  }
}

Pipeline simulate_pipeline(const TensorProfile& profile, const BucketPlan& plan, const CommCosts& costs, const PipelineOptions& options) {
  check_options(options);
  std::vector<int64_t> order = plan.launch_order;
  if (order.empty()) {
    order.resize(plan.buckets.size());
    std::iota(order.begin(), order.end(), int64_t{0});
  }
  PipelineRun run(profile, costs, options);
  run.set_buckets(plan.buckets);
  Pipeline pipeline;
  run.period_s(order, &pipeline);
  pipeline.computation_s = computation_s(profile, options.simulation, plan.buckets.size());
  for (BucketSpan& span : pipeline.buckets) {
    const Bucket& bucket = plan.buckets[static_cast<size_t>(span.bucket)];
    span.bytes = run.bytes(bucket);
    span.ready_s = pipeline.forward_end_s + profile.ready_s[static_cast<size_t>(bucket.first + bucket.count - 1)];
  }
  return pipeline;
}

double pipeline_bound_s(const TensorProfile& profile, const CommCosts& costs, const PipelineOptions& options) {
  check_options(options);
  const double bytes = static_cast<double>(profile.total_bytes());
  const double computation = computation_s(profile, options.simulation, profile.bytes.empty() ? 0 : 1) + options.agreement_s;
  if (!(bytes > 0)) return computation;
  const double rate = std::min(least_s_per_byte(costs.isolated, bytes), least_s_per_byte(costs.gap, bytes));
  return std::max(computation, bytes * rate / static_cast<double>(options.simulation.channels));
}

}  // namespace firkin
