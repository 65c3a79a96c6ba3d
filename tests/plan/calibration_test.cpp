#include "firkin/plan/calibration.h"

#include "../stats/synthetic_noise.h"
#include "../test.h"
#include "firkin/plan/bucket_plan.h"
#include "firkin/stats/estimates.h"
#include "helpers.h"

namespace firkin {
namespace {

// Twenty gradients of 1 MB, one every 10 ms; all-reduces of 1 ms + 5 ns a byte.
const TensorProfile kProfile = even_profile(20, 1000000, 0.2);
const CommCosts kLinearCosts = linear_costs(1e-3, 5e-9);

BucketPlan plan_for(int64_t cap_bytes) {
  return assign_buckets(kProfile.bytes, {.cap_bytes = cap_bytes, .rule = CapRule::kAtMost});
}

MeasuredRun run_of(int64_t cap_bytes, const SimulationOptions& truth, const CommCosts& costs = kLinearCosts) {
  const BucketPlan plan = plan_for(cap_bytes);
  return {.plan = plan, .end_s = simulate(kProfile, plan, costs, truth).end_s};
}

std::vector<MeasuredRun> runs_of(const std::vector<int64_t>& caps, const SimulationOptions& truth, const CommCosts& costs = kLinearCosts) {
  std::vector<MeasuredRun> runs;
  for (const int64_t cap : caps) runs.push_back(run_of(cap, truth, costs));
  return runs;
}

TEST(Calibrate, FewRunsGiveFewParametersWithOneRunLeftOver) {
  const SimulationOptions slow = {.compute_slowdown = 1.2};
  const Calibration one = calibrate(kProfile, kLinearCosts, {run_of(4000000, slow)});
  EXPECT_THAT(one.fitted, ElementsAre("the slowdown of computation"));
  EXPECT_NEAR(one.options.compute_slowdown, 1.2, 1e-4);
  EXPECT_FALSE(one.residual);
  const SimulationOptions truth = {.overhead_s = 2e-3, .compute_slowdown = 1.2};
  const Calibration two = calibrate(kProfile, kLinearCosts, runs_of({1000000, 5000000}, truth));
  EXPECT_EQ(two.fitted.size(), 1u);
  EXPECT_GT(*two.residual, 0.01);
  const Calibration three = calibrate(kProfile, kLinearCosts, runs_of({1000000, 5000000, 2000000}, truth));
  EXPECT_NEAR(three.options.overhead_s, 2e-3, 2e-5);
  EXPECT_NEAR(three.options.compute_slowdown, 1.2, 2e-3);
}

TEST(Calibrate, FindsTheLatencyBesideABackwardWhichMayBeLessThanAlone) {
  for (const double latency : {0.4, 2.0}) {
    const SimulationOptions truth = {.overhead_s = 1e-3, .compute_slowdown = 1.1};
    const CommCosts alone = linear_costs(4e-3, 12e-9);
    const auto runs = runs_of({1000000, 2000000, 3000000, 6000000}, truth, scaled(alone, latency));
    const Calibration calibration = calibrate(kProfile, alone, runs);
    EXPECT_THAT(calibration.fitted, ElementsAre("the slowdown of computation", "the overhead per call", "the latency factor"));
    EXPECT_NEAR(calibration.latency_factor, latency, 0.1 * latency);
    EXPECT_LT(calibration.median_relative_error, 2e-3);
    const double unseen_s = run_of(4000000, truth, scaled(alone, latency)).end_s;
    const double predicted_s = simulate(kProfile, plan_for(4000000), scaled(alone, calibration.latency_factor), calibration.options).end_s;
    EXPECT_NEAR(predicted_s / unseen_s, 1, 0.01);
  }
}

TEST(Calibrate, PredictsPlansThatItHasNotSeen) {
  const SimulationOptions truth = {.overhead_s = 1e-3, .compute_slowdown = 1.25};
  const Calibration calibration = calibrate(kProfile, kLinearCosts, runs_of({1000000, 20000000, 3000000, 5000000}, truth));
  for (const int64_t cap : {2000000, 4000000, 10000000}) {
    const double measured = run_of(cap, truth).end_s;
    const double predicted = simulate(kProfile, plan_for(cap), scaled(kLinearCosts, calibration.latency_factor), calibration.options).end_s;
    EXPECT_NEAR(predicted, measured, 0.005 * measured) << cap;
  }
}

TEST(Calibrate, FindsNothingWhereThereIsNothing) {
  const Calibration calibration = calibrate(kProfile, kLinearCosts, runs_of({1000000, 5000000, 2000000, 3000000}, {}));
  EXPECT_NEAR(calibration.options.compute_slowdown, 1, 1e-3);
  EXPECT_NEAR(calibration.options.overhead_s, 0, 1e-5);
  EXPECT_NEAR(calibration.latency_factor, 1, 1e-2);
}

TEST(Calibrate, WhatTheRunsDoNotDetermineGetsNoEffect) {
  // One bucket starts when backward is over: its time says nothing about contention.
  const Calibration calibration = calibrate(kProfile, kLinearCosts, runs_of({20000000, 20000000, 20000000, 20000000}, {}));
  EXPECT_EQ(calibration.options, SimulationOptions{});
}

TEST(Calibrate, ResidualIsTheNoiseOfTheTimes) {
  const SimulationOptions truth = {.overhead_s = 4e-3, .compute_slowdown = 1.4};
  const std::vector<MeasuredRun> exact = runs_of({1000000, 2000000, 3000000, 5000000, 7000000}, truth);
  EXPECT_LT(*calibrate(kProfile, kLinearCosts, exact).residual, 1e-3);
  std::vector<double> squares;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SyntheticNoise noise(seed);
    std::vector<MeasuredRun> runs = exact;
    for (MeasuredRun& run : runs) run.end_s *= std::exp(0.01 * noise.normal());
    squares.push_back(std::pow(*calibrate(kProfile, kLinearCosts, runs).residual, 2));
  }
  EXPECT_NEAR(std::sqrt(mean(squares)), 0.01, 0.003);
}

TEST(Calibrate, RejectsRunsThatAreNoMeasurement) {
  const auto error = [](const std::vector<MeasuredRun>& runs) { return error_of([&] { calibrate(kProfile, kLinearCosts, runs); }); };
  EXPECT_EQ(error({}), "calibration has no measured run; expected at least one");
  std::vector<MeasuredRun> runs = runs_of({1000000, 2000000, 3000000, 5000000}, {});
  runs[0].end_s = 0;
  EXPECT_EQ(error(runs), "run 0 of the calibration took 0 s; expected more than 0");
  runs[0] = {.plan = {.buckets = {{0, 3}}}, .end_s = 1};
  EXPECT_EQ(error(runs), "the buckets hold 3 tensors; expected 20");
}

}  // namespace
}  // namespace firkin
