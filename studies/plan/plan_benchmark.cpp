// How long the performance model takes.
//
//   cmake --preset light && cmake --build --preset light --target plan_benchmark
//   build-light/studies/plan_benchmark
//
// What is asked of it: one simulation of 435 tensors under 20 us, the optimal plan of 435 tensors under 5 ms, of 10,000 under 1 s,
// with and without an overhead per call.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <random>

#include "firkin/plan/best_plan.h"

namespace firkin {
namespace {

enum class Sizes { kTransformer, kRandom };

// Tensors ready at an even rate per byte over one second of backward.
TensorProfile make_profile(int64_t tensor_count, Sizes sizes) {
  constexpr int64_t kModel = 1600, kHidden = 6400;  // the CS336 transformer "xl"
  const int64_t block[] = {kModel * kHidden, kHidden * kModel, kModel * kHidden, kModel, kModel * kModel,
                           kModel * kModel,  kModel * kModel,  kModel * kModel,  kModel};
  std::mt19937_64 generator(1);
  std::uniform_real_distribution<double> exponent(3, 8);
  TensorProfile profile;
  double total = 0;
  for (int64_t i = 0; i < tensor_count; ++i) {
    const int64_t bytes = sizes == Sizes::kTransformer ? 4 * block[i % 9] : static_cast<int64_t>(std::pow(10, exponent(generator)));
    total += static_cast<double>(bytes);
    profile.names.push_back(fmt::format("t{}", i));
    profile.bytes.push_back(bytes);
    profile.ready_s.push_back(total);
  }
  for (double& ready : profile.ready_s) ready /= total;
  profile.backward_s = profile.ready_s.back();
  return profile;
}

// A noisy measured table: 30 sizes from 1 KiB up; all bytes in one call take `busy` seconds.
CommCosts make_costs(const TensorProfile& profile, double busy) {
  double total = 0;
  for (const int64_t bytes : profile.bytes) total += static_cast<double>(bytes);
  std::mt19937_64 generator(2);
  std::uniform_real_distribution<double> noise(0.9, 1.1);
  std::vector<CostPoint> isolated, gap;
  double bytes = 1024;
  for (int i = 0; i < 30; ++i, bytes *= 2) {
    const double seconds = 50e-6 + bytes * busy / total;
    isolated.push_back({static_cast<int64_t>(bytes), 1.1 * seconds * noise(generator)});
    gap.push_back({static_cast<int64_t>(bytes), seconds * noise(generator)});
  }
  return {CostCurve(std::move(isolated)), CostCurve(std::move(gap))};
}

void simulate_plan(benchmark::State& state) {
  const TensorProfile profile = make_profile(435, Sizes::kTransformer);
  const CommCosts costs = make_costs(profile, 0.8);
  const BucketPlan plan = assign_buckets(profile.bytes, {.cap_bytes = state.range(0) * kMiB, .rule = CapRule::kAtMost});
  SimulationOptions options;
  if (state.range(1) != 0) options.compute_slowdown = 1.2;
  for (auto _ : state) benchmark::DoNotOptimize(simulate(profile, plan, costs, options));
  state.SetLabel(fmt::format("435 tensors, {} buckets{}", plan.buckets.size(), state.range(1) != 0 ? ", contention" : ""));
}
BENCHMARK(simulate_plan)->ArgsProduct({{1, 25, 1000}, {0, 1}})->ArgNames({"cap_mib", "contention"})->Unit(benchmark::kMicrosecond);

void optimal_plan(benchmark::State& state) {
  const TensorProfile profile = make_profile(state.range(0), state.range(1) == 0 ? Sizes::kTransformer : Sizes::kRandom);
  const CommCosts costs = make_costs(profile, static_cast<double>(state.range(2)) / 10);
  size_t buckets = 0;
  for (auto _ : state) buckets = find_best_plan(profile, costs).plan.buckets.size();
  state.SetLabel(fmt::format("{} buckets", buckets));
}
BENCHMARK(optimal_plan)
    ->ArgsProduct({{435, 10000}, {0, 1}, {1, 8, 12, 50}})
    ->ArgNames({"tensors", "random", "busy_tenths"})
    ->Unit(benchmark::kMillisecond);

// 20 us a call, and a copy at 20 GB/s, on the thread that runs backward.
void optimal_plan_with_overhead(benchmark::State& state) {
  const TensorProfile profile = make_profile(state.range(0), state.range(1) == 0 ? Sizes::kTransformer : Sizes::kRandom);
  const CommCosts costs = make_costs(profile, static_cast<double>(state.range(2)) / 10);
  size_t buckets = 0;
  for (auto _ : state) {
    const SearchOptions options = {.simulation = {.overhead_s = 20e-6}};
    buckets = find_best_plan(profile, costs, options).plan.buckets.size();
  }
  state.SetLabel(fmt::format("{} buckets", buckets));
}
BENCHMARK(optimal_plan_with_overhead)
    ->ArgsProduct({{435, 10000}, {0, 1}, {1, 8, 12, 50}})
    ->ArgNames({"tensors", "random", "busy_tenths"})
    ->Unit(benchmark::kMillisecond);

void plan_under_contention(benchmark::State& state) {
  const TensorProfile profile = make_profile(435, Sizes::kTransformer);
  const CommCosts costs = make_costs(profile, 0.8);
  const SearchOptions options = {.simulation = {.compute_slowdown = 1.1}};
  for (auto _ : state) benchmark::DoNotOptimize(find_best_plan(profile, costs, options));
}
BENCHMARK(plan_under_contention)->Unit(benchmark::kMillisecond);

void best_uniform_cap(benchmark::State& state) {
  const TensorProfile profile = make_profile(435, state.range(0) == 0 ? Sizes::kTransformer : Sizes::kRandom);
  const CommCosts costs = make_costs(profile, 0.8);
  for (auto _ : state) benchmark::DoNotOptimize(find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost}));
  state.SetLabel(fmt::format("{} partitions", distinct_plans(profile, {.rule = CapRule::kAtMost}).plans.size()));
}
BENCHMARK(best_uniform_cap)->Arg(0)->Arg(1)->ArgName("random")->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace firkin
