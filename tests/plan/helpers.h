// Shared by the tests of plan/.
#pragma once

#include <random>

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

// Of 8 bytes, ready at 1 and 2 s; the second is needed when forward begins, the first after 3 of 4 s.
inline TensorProfile two_tensors() {
  TensorProfile profile = make_profile({8, 8}, {1, 2});
  profile.needed_s = {3, 0};
  profile.forward_s = 4;
  return profile;
}
inline const BucketPlan kTwoBuckets = {.buckets = {{0, 1}, {1, 1}}};

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

// All-reduce of x bytes: 1 s + x / 8 s on an idle link.
inline const CommCosts kCosts = linear_costs(1, 0.125);

// All-reduces on these worlds, of 1 KiB and eight times as much each, that take what `seconds` says for ranks and bytes.
inline AllReduceTable table_of(const std::vector<int64_t>& worlds, const std::function<double(double, double)>& seconds) {
  AllReduceTable table;
  for (const int64_t world : worlds) {
    for (int64_t bytes = 1024; bytes <= 1 << 30; bytes *= 8) {
      table.push_back({.bytes = bytes, .world_size = world, .median_s = seconds(static_cast<double>(world), static_cast<double>(bytes))});
    }
  }
  return table;
}

// Random inputs of the performance model, for the tests that compare with a slow and simple computation.
class RandomInstance {
 public:
  explicit RandomInstance(uint64_t seed) : generator_(seed) {}

  double uniform(double low, double high) { return std::uniform_real_distribution<double>(low, high)(generator_); }
  int64_t integer(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(generator_); }

  // Sizes over four decades, some of them equal, some zero; ready times over about a second, some of them equal.
  TensorProfile profile(int64_t tensor_count) {
    std::vector<int64_t> bytes;
    std::vector<double> ready_s;
    double now = 0;
    for (int64_t i = 0; i < tensor_count; ++i) {
      bytes.push_back(integer(0, 9) == 0 ? 0 : static_cast<int64_t>(std::pow(10, uniform(2, 6))));
      if (i > 0 && integer(0, 3) == 0) bytes.back() = bytes[static_cast<size_t>(integer(0, i - 1))];
      if (integer(0, 4) > 0) now += uniform(0, 2.0 / static_cast<double>(tensor_count));
      ready_s.push_back(now);
    }
    TensorProfile result = make_profile(std::move(bytes), std::move(ready_s));
    if (integer(0, 1) == 0) result.backward_s += uniform(0, 0.2);
    return result;
  }

  // The same with a forward pass that needs the tensors in reverse, or at random; updates take time, or none.
  TensorProfile profile_with_forward(int64_t tensor_count) {
    TensorProfile result = profile(tensor_count);
    const bool reverse = integer(0, 2) > 0;
    result.forward_s = uniform(0.1, 1);
    for (const double ready_s : result.ready_s) {
      result.needed_s.push_back(result.forward_s * (reverse ? 1 - ready_s / std::max(result.backward_s, 1e-9) : uniform(0, 1)));
    }
    if (integer(0, 1) == 0) {
      for (int64_t i = 0; i < tensor_count; ++i) result.update_s.push_back(integer(0, 3) == 0 ? 0 : uniform(0, 0.05));
    }
    return result;
  }

  // Neither monotone nor convex: noise of a factor of three on a line, at sizes of one random grid.
  CostCurve curve() {
    const double alpha = std::pow(10, uniform(-5, -1));
    const double beta = std::pow(10, uniform(-9, -6));
    std::vector<CostPoint> points;
    double bytes = uniform(1, 5000);
    for (int64_t i = integer(1, 12); i > 0; --i, bytes *= uniform(1.1, 8)) {
      points.push_back({static_cast<int64_t>(bytes), (alpha + beta * bytes) * uniform(0.5, 1.5)});
    }
    return CostCurve(std::move(points));
  }

  CommCosts costs() {
    CostCurve isolated = curve();
    CostCurve gap = integer(0, 1) == 0 ? isolated : curve();
    return {std::move(isolated), std::move(gap)};
  }

  BucketPlan plan(int64_t tensor_count, bool permuted = false) {
    BucketPlan result;
    for (int64_t first = 0; first < tensor_count;) {
      const int64_t count = integer(1, tensor_count - first);
      result.buckets.push_back({first, count});
      first += count;
    }
    if (permuted) {
      for (int64_t k = 0; k < std::ssize(result.buckets); ++k) result.launch_order.push_back(k);
      std::shuffle(result.launch_order.begin(), result.launch_order.end(), generator_);
    }
    return result;
  }

 private:
  std::mt19937_64 generator_;
};

}  // namespace firkin
