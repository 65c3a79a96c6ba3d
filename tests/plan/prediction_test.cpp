#include "firkin/plan/prediction.h"

#include "../test.h"
#include "helpers.h"

namespace firkin {
namespace {

const TensorProfile kEven = even_profile(12, kMiB, 0.12);

AllReduceTable measured_on(const std::vector<int64_t>& worlds) {
  return table_of(worlds, [](double ranks, double bytes) { return 1e-4 * ranks + 2e-9 * bytes; });
}

TEST(Prediction, NoCapOfTheCurveBeatsThePlan) {
  const Prediction prediction = predict({.profile = kEven, .table = measured_on({4}), .world_size = 4});
  EXPECT_EQ(prediction.curve.back().cap_bytes, 16 * kMiB);  // powers of two until one holds everything
  for (const PredictedCap& point : prediction.curve) {
    EXPECT_LE(prediction.best_plan.backward_s, point.time_s * (1 + 1e-5));
  }
  EXPECT_LE(prediction.best_plan.backward_s, prediction.best_uniform.time_s * (1 + 1e-5));
  EXPECT_EQ(prediction.workload.gradient_bytes, 12 * kMiB);
  EXPECT_FALSE(prediction.workload.extrapolated_from);
}

TEST(Prediction, HasTheIntervalThatTheModelsErrorMakes) {
  const Prediction calibrated = predict({.profile = kEven, .table = measured_on({4}), .world_size = 4, .residual = 0.01});
  const Prediction guess = predict({.profile = kEven, .table = measured_on({4}), .world_size = 4});
  for (size_t i = 0; i < guess.curve.size(); ++i) {  // without a calibration backward itself may be off by a fifth
    EXPECT_LT(guess.curve[i].low_s, calibrated.curve[i].low_s);
    EXPECT_GT(guess.curve[i].high_s, calibrated.curve[i].high_s);
  }
  EXPECT_DOUBLE_EQ(calibrated.best_plan.high_s, calibrated.best_plan.backward_s * std::exp(2.74 * std::hypot(0.02, 0.01)));
}

// With so little communication no cap gains; with much of it, every cap that overlaps does.
TEST(Prediction, TakesACapOnlyForAGainThatErrorsLeave) {
  const auto answer_with = [](double s_per_byte) {
    const AllReduceTable table = table_of({4}, [&](double, double bytes) { return 20e-6 + s_per_byte * bytes; });
    return predict({.profile = kEven, .table = table, .world_size = 4});
  };
  EXPECT_EQ(answer_of(answer_with(1e-11)), PredictedAnswer::kNothingToGain);
  const Prediction slow = answer_with(1e-8);  // 12 MiB take as long as backward
  EXPECT_EQ(answer_of(slow), PredictedAnswer::kLikely);
  EXPECT_GT(slow.over_default->low, 0);
  EXPECT_LT(slow.over_default->low, slow.over_default->expected);
  Prediction unsure = slow;
  unsure.over_default->low = -0.01;
  EXPECT_EQ(answer_of(unsure), PredictedAnswer::kNotToldApart);
}

TEST(Prediction, OfAssumedComputingIsNotSureOfAGain) {
  const AllReduceTable table = table_of({4}, [&](double, double bytes) { return 20e-6 + 1e-8 * bytes; });
  const Prediction measured = predict({.profile = kEven, .table = table, .world_size = 4});
  const Prediction assumed = predict({.profile = kEven, .table = table, .world_size = 4, .compute_assumed = true});
  EXPECT_FALSE(measured.workload.compute_assumed);
  EXPECT_TRUE(assumed.workload.compute_assumed);
  EXPECT_LT(assumed.over_default->low, measured.over_default->low);
  EXPECT_GT(assumed.best_uniform.high_s, measured.best_uniform.high_s);
}

TEST(Prediction, OfATableFarFromItsOwnLineIsLessSure) {
  AllReduceTable table = measured_on({4});
  const double sure = *predict({.profile = kEven, .table = table, .world_size = 4}).best_uniform.expected_regret;
  for (size_t row = 0; row < table.size(); row += 2) table[row].median_s *= 2;
  EXPECT_GT(*predict({.profile = kEven, .table = table, .world_size = 4}).best_uniform.expected_regret, sure);
}

// 60 gradients of 1 MiB within 100 ms, and one of 40 MiB at 120 ms: with caps of 25 MiB the link is free for that one just in time, as with
// smaller ones; where its bytes take 16 % longer, it is not.
TEST(Prediction, TheCapIsNotTheLastBeforeTheCliff) {
  TensorProfile even = even_profile(60, kMiB, 0.1);
  even.bytes.push_back(40 * kMiB);
  even.ready_s.push_back(0.12);
  const TensorProfile profile = make_profile(even.bytes, even.ready_s);
  const AllReduceTable table = table_of({4}, [](double /*ranks*/, double bytes) { return 20e-6 + 1e-9 * bytes; });
  const CapOptions rule = {.rule = CapRule::kAtMost};
  const auto end_s = [&](int64_t cap, double byte_factor) {
    const BucketPlan plan = assign_buckets(profile.bytes, {.cap_bytes = cap, .rule = rule.rule});
    return simulate(profile, plan, scaled(comm_costs(table, 4), 1, byte_factor)).end_s;
  };
  const int64_t named = predict({.profile = profile, .table = table, .world_size = 4, .rule = rule}).best_uniform.cap_bytes;
  const int64_t before_cliff = 25 * kMiB;
  EXPECT_NEAR(end_s(before_cliff, 1), end_s(named, 1), 1e-3 * end_s(named, 1));
  EXPECT_GT(end_s(before_cliff, 1.16), 1.02 * end_s(named, 1.16));
}

// kEven, needed in reverse by a forward pass of 60 ms.
TensorProfile even_profile_with_forward() {
  TensorProfile profile = with_forward(kEven, 0.06);
  profile.update_s.assign(profile.bytes.size(), 0.001);
  return profile;
}

TEST(Prediction, OfAProfileThatKnowsItsForwardSaysWhatOrderedGains) {
  AllReduceTable slow = measured_on({4});
  for (AllReduceRow& row : slow) row.median_s *= 8;  // 12 MiB take 0.2 s
  const Prediction prediction = predict({.profile = even_profile_with_forward(), .table = slow, .world_size = 4});
  ASSERT_TRUE(prediction.ordered);
  const PredictedOrdered& ordered = *prediction.ordered;
  EXPECT_DOUBLE_EQ(ordered.bucketed_period_s, 0.06 + prediction.best_uniform.time_s + 0.012);
  EXPECT_GT(ordered.gain(), 0.1);
  EXPECT_LE(ordered.bound_s, ordered.period_s);
  int64_t bytes = 0;
  for (const PredictedOrderedBucket& bucket : ordered.buckets) bytes += bucket.bytes;
  EXPECT_EQ(bytes, 12 * kMiB);
  EXPECT_EQ(ordered.buckets.size(), ordered.plan.buckets.size());
}

TEST(Prediction, OfAProfileWithoutForwardSaysNothingOfOrdered) {
  EXPECT_FALSE(predict({.profile = kEven, .table = measured_on({4}), .world_size = 4}).ordered);
}

TEST(Prediction, AWorldThatWasNotMeasuredHasRangesAroundItsTimes) {
  const Prediction prediction = predict({.profile = even_profile_with_forward(), .table = measured_on({4, 8, 16}), .world_size = 256});
  EXPECT_EQ(prediction.workload.extrapolated_from, 16);
  ASSERT_TRUE(prediction.best_plan.low_s > 0 && prediction.curve[0].low_s > 0 && prediction.ordered && prediction.ordered->low_s > 0);
  EXPECT_LE(prediction.best_plan.low_s, prediction.best_plan.backward_s);
  EXPECT_GE(prediction.best_plan.high_s, prediction.best_plan.backward_s);
  EXPECT_LE(prediction.ordered->low_s, prediction.ordered->period_s);
  EXPECT_GE(prediction.ordered->high_s, prediction.ordered->period_s);
}

TEST(Prediction, SamplesOfAllReducesWidenTheInterval) {
  AllReduceTable table = measured_on({4});
  for (AllReduceRow& row : table) {
    row.stdev_s = 0.3 * row.median_s;
    row.samples = 10;
  }
  const Prediction prediction = predict({.profile = kEven, .table = table, .world_size = 4, .residual = 0.01});
  const Prediction exact = predict({.profile = kEven, .table = measured_on({4}), .world_size = 4, .residual = 0.01});
  for (size_t i = 0; i < prediction.curve.size(); ++i) {
    const PredictedCap& point = prediction.curve[i];
    EXPECT_LT(point.low_s, exact.curve[i].low_s);
    EXPECT_GT(point.high_s, exact.curve[i].high_s);
    EXPECT_TRUE(*point.near_best >= 0 && *point.near_best <= 1);
  }
}

}  // namespace
}  // namespace firkin
