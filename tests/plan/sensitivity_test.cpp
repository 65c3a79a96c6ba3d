#include "firkin/plan/uncertainty.h"

#include "../test.h"
#include "helpers.h"

namespace firkin {
namespace {

// 1000 equal tensors of 1 MB at an even rate over one second, and a link of half their rate: b* = sqrt(B o r), which grows as the square
// root of the latency and of the rate of computation, and does not depend on the bandwidth.
ScaledInputs busy_link(const CommCosts& costs = linear_costs(1e-3, 2e-9)) {
  return {even_profile(1000, 1000000, 1), costs, {}};
}

const CostCurve kRising({{1000, 2e-3}, {1000000, 5e-3}});

TEST(ScaleInputs, TotalBytesLeaveTheTimesOfComputation) {
  const ScaledInputs scaled = scale_inputs(busy_link(), Influence::kTotalBytes, 0.5);
  EXPECT_EQ(scaled.profile.bytes[0], 500000);
  EXPECT_EQ(scaled.profile.ready_s, busy_link().profile.ready_s);
}

TEST(ScaleInputs, LatencyIsTheLeastTimeInTheTable) {
  const ScaledInputs inputs = busy_link({kRising, CostCurve({{1000, 1e-3}, {1000000, 4e-3}})});
  const CommCosts scaled = scale_inputs(inputs, Influence::kLatency, 4).costs;
  EXPECT_DOUBLE_EQ(scaled.isolated(1000), 8e-3);
  EXPECT_DOUBLE_EQ(scaled.isolated(1000000), 11e-3);
  EXPECT_DOUBLE_EQ(scaled.gap(1000000), 7e-3);
}

TEST(ScaleInputs, BandwidthDividesWhatIsNotLatency) {
  const CommCosts scaled = scale_inputs(busy_link({kRising, kRising}), Influence::kBandwidth, 2).costs;
  EXPECT_DOUBLE_EQ(scaled.isolated(1000), 2e-3);
  EXPECT_DOUBLE_EQ(scaled.isolated(1000000), 3.5e-3);
}

TEST(ScaleInputs, BackwardTimeStretchesEveryReadyTime) {
  const ScaledInputs scaled = scale_inputs(busy_link(), Influence::kBackward, 3);
  EXPECT_DOUBLE_EQ(scaled.profile.ready_s[0], 3e-3);
  EXPECT_DOUBLE_EQ(scaled.profile.backward_s, 3);
}

TEST(ScaleInputs, ContentionIsWhatTheSlowdownHasAboveOne) {
  ScaledInputs inputs = busy_link();
  inputs.options = {.compute_slowdown = 1.25};
  const SimulationOptions scaled = scale_inputs(inputs, Influence::kContention, 2).options;
  EXPECT_DOUBLE_EQ(scaled.compute_slowdown, 1.5);
}

TEST(ScaleInputs, RejectsAFactorOfZero) {
  EXPECT_EQ(error_of([] { scale_inputs(busy_link(), Influence::kLatency, 0); }), "a sensitivity factor is 0; expected more than 0");
}

class SensitivityTable : public testing::Test {
 protected:
  const ScaledInputs inputs_ = busy_link();
  const std::vector<SensitivityPoint> points_ = sensitivity_table(inputs_.profile, inputs_.costs, {.rule = CapRule::kAtMost});
};

TEST_F(SensitivityTable, HasSevenFactorsOfEachInfluenceThatThereIs) {
  EXPECT_EQ(points_.size(), 4u * 7u);
}

TEST_F(SensitivityTable, AtFactorOneIsTheBestUniformCap) {
  const BestUniformCap best = find_best_uniform_cap(inputs_.profile, inputs_.costs, {.rule = CapRule::kAtMost});
  for (const SensitivityPoint& point : points_) {
    if (point.factor != 1) continue;
    EXPECT_EQ(point.best.cap_bytes, roundest_cap(best.caps));
    EXPECT_DOUBLE_EQ(point.best.time_s, best.timeline.end_s);
    EXPECT_LE(point.near_low_bytes, best.caps.lowest_cap_bytes);
    EXPECT_GE(point.near_high_bytes, best.caps.lowest_cap_bytes);
    EXPECT_DOUBLE_EQ(point.kept_backward_s, point.best.time_s);
  }
}

TEST_F(SensitivityTable, KeepingTheCapCostsSomethingSomewhereAndNeverHelps) {
  bool costs_somewhere = false;
  for (const SensitivityPoint& point : points_) {
    EXPECT_GE(point.kept_backward_s, point.best.time_s * (1 - 1e-5));
    costs_somewhere = costs_somewhere || point.kept_backward_s > 1.01 * point.best.time_s;
  }
  EXPECT_TRUE(costs_somewhere);
}

TEST_F(SensitivityTable, MoreLatencyOrBytesNeverHelpAndMoreBandwidthNeverHurts) {
  for (size_t i = 1; i < points_.size(); ++i) {
    if (points_[i].influence != points_[i - 1].influence) continue;
    const double before_s = points_[i - 1].best.time_s, after_s = points_[i].best.time_s;
    if (points_[i].influence == Influence::kBandwidth) {
      EXPECT_LE(after_s, before_s);
    } else {
      EXPECT_GE(after_s, before_s);
    }
  }
}

}  // namespace
}  // namespace firkin
