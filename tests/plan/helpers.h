// Shared by the tests of plan/.
#pragma once

#include "../test.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/plan/cost_curve.h"
#include "firkin/plan/measurements.h"

namespace firkin {

// Tensors t0, t1, ... with these bytes and ready times; backward ends with the last of them.
inline TensorProfile make_profile(std::vector<int64_t> bytes, std::vector<double> ready_s) {
  TensorProfile profile;
  for (size_t i = 0; i < bytes.size(); ++i) profile.names.push_back(fmt::format("t{}", i));
  profile.backward_s = ready_s.empty() ? 0 : ready_s.back();
  profile.bytes = std::move(bytes);
  profile.ready_s = std::move(ready_s);
  return profile;
}

// Tensors alike, ready at even times until backward ends.
inline TensorProfile even_profile(int tensors, int64_t bytes, double backward_s) {
  std::vector<double> ready_s;
  for (int i = 1; i <= tensors; ++i) ready_s.push_back(backward_s * i / tensors);
  return make_profile(std::vector<int64_t>(static_cast<size_t>(tensors), bytes), ready_s);
}

// Of each bucket: how many tensors.
inline std::vector<int64_t> counts(const BucketPlan& plan) {
  std::vector<int64_t> result;
  for (const Bucket& bucket : plan.buckets) result.push_back(bucket.count);
  return result;
}

// alpha + bytes * beta, exactly: two points, and no test's bytes lie beyond them.
inline CostCurve linear_curve(double alpha_s, double beta_s_per_byte) {
  constexpr int64_t kMany = int64_t{1} << 50;
  return CostCurve({{1, alpha_s + beta_s_per_byte}, {kMany, alpha_s + static_cast<double>(kMany) * beta_s_per_byte}});
}

inline CommCosts linear_costs(double alpha_s, double beta_s_per_byte) {
  return {linear_curve(alpha_s, beta_s_per_byte), linear_curve(alpha_s, beta_s_per_byte)};
}

}  // namespace firkin
