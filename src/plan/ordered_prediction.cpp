#include "firkin/plan/ordered_prediction.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace firkin {

PipelineOptions pipeline_options(const CommCosts& costs, const SimulationOptions& simulation) {
  constexpr double kAgreementBytes = 64;
  return {.simulation = simulation, .agreement_s = std::max(0.0, costs.isolated(kAgreementBytes))};
}

PredictedOrdered predict_ordered(const TensorProfile& profile, const CommCosts& costs, double bucketed_backward_s,
                                 const SearchOptions& search) {
  const OrderedSearchOptions options = {.pipeline = pipeline_options(costs, search.simulation),
                                        .tolerance = search.tolerance,
                                        .largest_bucket_bytes = search.largest_bucket_bytes};
  OrderedPlan best = find_ordered_plan(profile, costs, options);
  const Pipeline& step = best.pipeline;
  PredictedOrdered result;
  result.bucketed_period_s =
      profile.forward_s + bucketed_backward_s + std::accumulate(profile.update_s.begin(), profile.update_s.end(), 0.0);
  result.period_s = step.period_s;
  result.gain = result.bucketed_period_s > 0 ? 1 - result.period_s / result.bucketed_period_s : 0;
  result.bound_s = best.bound_s;
  result.waited_s = step.waited_s;
  result.computation_s = step.computation_s;
  result.communication_s = step.communication_s;
  result.agreement_s = options.pipeline.agreement_s;
  for (const BucketSpan& span : step.buckets) {
    const Bucket& bucket = best.plan.buckets[static_cast<size_t>(span.bucket)];
    const auto names = profile.names.begin() + bucket.first;
    const auto needed = profile.needed_s.begin() + bucket.first;
    const auto from_backward = [&](double seconds) { return seconds - step.forward_end_s; };
    result.buckets.push_back({.bucket = span.bucket,
                              .first_tensor = bucket.first,
                              .part = bucket.part,
                              .parts = bucket.parts,
                              .bytes = span.bytes,
                              .tensors = {names, names + bucket.count},
                              .ready_s = from_backward(span.ready_s),
                              .start_s = from_backward(span.start_s),
                              .end_s = from_backward(span.end_s),
                              .needed_s = profile.knows_forward() ? *std::min_element(needed, needed + bucket.count) : 0});
  }
  result.plan = std::move(best.plan);
  return result;
}

}  // namespace firkin
