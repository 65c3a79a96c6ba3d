// What tune calibrates on and recommends, from given numbers: nothing is measured here.
#include "../test.h"
#include "firkin/plan/calibration.h"
#include "firkin/plan/decision.h"

#include "firkin/base/units.h"
#include "firkin/plan/best_plan.h"
#include "helpers.h"

namespace firkin {
namespace {

constexpr CapOptions kBothRules[] = {{.rule = CapRule::kAtMost}, {.rule = CapRule::kCloseWhenFull}};

// Sixty-four tensors of 1000 bytes, ready evenly over a tenth of a second, and a link on which almost nothing is exposed.
struct AlmostNothingExposed {
  TensorProfile profile = even_profile(64, 1000, 0.1);
  CommCosts costs = linear_costs(1e-7, 1e-10);
  StepModel model{.profile = profile, .costs = costs, .simulation = {}, .none_step_s = 0.3, .bare_backward_s = 0.1};
  std::vector<int64_t> caps = {1000, 4000, 16000, 64000};
};

// Forty tensors of half a MiB, ready and needed at even times; all of them take the link 1.5 times as long as backward takes.
TEST(OrderedCandidates, AreTheFewThatTheSimulationCannotTellFromTheBest) {
  constexpr int kTensors = 40;
  const TensorProfile profile = with_forward(even_profile(kTensors, kMiB / 2, 0.1), 0.05);
  const CommCosts costs = linear_costs(1e-4, 0.15 / (kTensors * kMiB / 2.0));
  const StepModel model{.profile = profile, .costs = costs, .simulation = {}, .none_step_s = 0.16, .bare_backward_s = 0.1};
  for (const int64_t most : {40, 12}) {
    const std::vector<BucketPlan> plans = ordered_candidates(model, most);
    ASSERT_GE(plans.size(), 2U) << "nothing to race";
    EXPECT_LE(plans.size(), 3U);
    double before_s = 0;
    for (const BucketPlan& plan : plans) {
      EXPECT_NO_THROW(check_plan(plan, kTensors));
      EXPECT_LE(plan.buckets.size(), static_cast<size_t>(most));
      EXPECT_GE(predict_ordered_step(model, plan), before_s);
      before_s = predict_ordered_step(model, plan);
      EXPECT_LE(before_s, 1.05 * predict_ordered_step(model, plans[0]));
    }
  }
}

TEST(BestPrediction, IsNotMadeWithoutTheTimeOfAStep) {
  AlmostNothingExposed given;
  given.model.none_step_s = 0;
  EXPECT_THROW(predict_steps(given.model, kBothRules[0], given.caps), std::invalid_argument);
  EXPECT_THROW(predict_step(given.model, one_bucket(64)), std::invalid_argument);
}

TEST(BestPrediction, IsNotMovedByTheOffsetOfTheBareBackward) {
  AlmostNothingExposed given;
  given.model.bare_backward_s = 0.11;  // hooks made backward faster, as noise can: what is exposed comes out below 0
  const std::vector<PredictedCap> curve = predict_steps(given.model, kBothRules[0], given.caps);
  EXPECT_LT(curve.front().time_s, given.model.none_step_s);
}

TEST(BestPrediction, IsATimeWhateverNoiseMadeOfTheBareBackward) {
  AlmostNothingExposed given;
  given.model.bare_backward_s = 0.5;  // longer than a step
  for (const PredictedCap& cap : predict_steps(given.model, kBothRules[0], given.caps)) {
    EXPECT_GE(cap.time_s, given.profile.backward_s);
    EXPECT_GE(cap.expected_regret, 0);
  }
}

TEST(BestPrediction, IsThatOfAPlanUnderItsCap) {
  const AlmostNothingExposed given;
  const std::vector<PredictedCap> curve = predict_steps(given.model, kBothRules[0], given.caps);
  EXPECT_DOUBLE_EQ(curve.back().time_s, predict_step(given.model, one_bucket(64)));
  EXPECT_DOUBLE_EQ(curve.front().time_s, predict_step(given.model, one_tensor_per_bucket(64)));
}

TEST(TorchDefault, IsOneMebibyteAndThenTwentyFive) {
  const std::vector<int64_t> sizes(60, kMiB);
  EXPECT_THAT(bucket_bytes(assign_buckets(sizes, kTorchDefaultCaps), sizes), ElementsAre(kMiB, 25 * kMiB, 25 * kMiB, 9 * kMiB));
}

TEST(DistinctCaps, MeasuresCapsWithTheSameBucketsOnce) {
  const std::vector<int64_t> sizes = {1000, 1000, 1000};
  const DistinctCaps distinct = distinct_caps({64 * kMiB, 1000, 32 * kMiB, 1000}, sizes, kBothRules[0]);
  EXPECT_THAT(distinct.caps, ElementsAre(1000, 32 * kMiB));
  EXPECT_THAT(distinct.dropped, ElementsAre(SameBuckets{64 * kMiB, 32 * kMiB}));
}

TEST(DistinctCaps, LetsAMeasuredCapStandForTheBest) {
  const std::vector<int64_t> sizes = {1000, 1000, 1000};
  std::vector<int64_t> caps = {1000, 3000};
  EXPECT_EQ(add_cap(caps, 5000, sizes, kBothRules[0]), 3000);
  EXPECT_EQ(add_cap(caps, 2000, sizes, kBothRules[0]), 2000);
  EXPECT_THAT(caps, ElementsAre(1000, 2000, 3000));
}

TEST(DefaultCaps, AreSevenFromOneBucketForEverythingDown) {
  EXPECT_THAT(default_caps(std::vector<int64_t>(3000, 1), kBothRules[0]), ElementsAre(64, 128, 256, 512, 1024, 2048, 4096));
}

TEST(DefaultCaps, SkipThoseThatChangeNoBucket) {
  EXPECT_THAT(default_caps(std::vector<int64_t>{1, 1, 1000, 1}, kBothRules[0]), ElementsAre(1, 512, 1024));
  EXPECT_THAT(default_caps(std::vector<int64_t>{4}, kBothRules[0]), ElementsAre(4));
}

TEST(CalibrationPlans, AreOfNoCapAndNotVerified) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(8, 60));
    CapOptions rule = kBothRules[seed % 2];
    if (seed % 3 == 0) rule.first_cap_bytes = random.integer(1, 100000);
    const size_t tensors = profile.bytes.size();
    const std::vector<BucketPlan> verified = {one_tensor_per_bucket(tensors), one_bucket(tensors),
                                              assign_buckets(profile.bytes, kTorchDefaultCaps)};
    const std::vector<BucketPlan> plans = calibration_plans(profile.bytes, rule, verified);
    ASSERT_THAT(plans, SizeIs(4));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(std::ranges::count(plans, plans[i]), 1);
    for (const BucketPlan& plan : plans) check_plan(plan, static_cast<int64_t>(tensors));
    for (const BucketPlan& plan : verified) EXPECT_FALSE(calibrated_on(plans, plan)) << seed;
    for (const UniformCap& of_cap : distinct_plans(profile, rule).plans) EXPECT_FALSE(calibrated_on(plans, of_cap.plan)) << seed;
  }
}

TEST(CalibrationPlans, AreManyCallsFewAndSome) {
  const std::vector<BucketPlan> plans = calibration_plans(std::vector<int64_t>(240, 1000), kBothRules[0], {one_tensor_per_bucket(240)});
  const auto is_about = [](size_t least, size_t most) { return SizeIs(AllOf(Ge(least), Le(most))); };
  EXPECT_THAT(plans[0].buckets, is_about(58, 64));
  EXPECT_THAT(plans[1].buckets, is_about(18, 24));
  EXPECT_THAT(plans[2].buckets, is_about(5, 7));
  EXPECT_THAT(plans[3].buckets, is_about(2, 4));
}

TEST(CalibrationPlans, OfOneTensorAreWhatThereIs) {
  const std::vector<int64_t> sizes = {4};
  const std::vector<BucketPlan> plans = calibration_plans(sizes, kBothRules[0], {one_bucket(1)});
  EXPECT_THAT(plans, Each(one_bucket(1)));
  EXPECT_TRUE(calibrated_on(plans, one_bucket(1)));  // which the result says
}

TEST(PredictSteps, HoldsWhatAnyCapOfTheSameBucketsIsAndWhatItMayCost) {
  AlmostNothingExposed given;
  given.costs = linear_costs(1e-4, 1e-6);
  const std::vector<PredictedCap> curve = predict_steps(given.model, kBothRules[0], given.caps);
  EXPECT_EQ(curve[1].lowest_cap_bytes, 4000);
  EXPECT_EQ(curve[1].highest_cap_bytes, 4999);
  for (const PredictedCap& cap : curve) {
    EXPECT_LT(cap.low_s, cap.time_s);
    EXPECT_GT(cap.high_s, cap.time_s);
    EXPECT_GE(cap.expected_regret, 0);
  }
  given.model.residual = 0.2;
  EXPECT_LT(predict_steps(given.model, kBothRules[0], given.caps)[1].low_s, curve[1].low_s);
}

TEST(IsMadeByACap, KnowsWhatACapMakes) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(1, 9));
    const CapOptions& rule = kBothRules[seed % 2];
    std::vector<BucketPlan> made;
    for (const UniformCap& of_cap : distinct_plans(profile, rule).plans) made.push_back(of_cap.plan);
    for (int i = 0; i < 50; ++i) {
      const BucketPlan plan = random.plan(static_cast<int64_t>(profile.bytes.size()));
      EXPECT_EQ(is_made_by_a_cap(plan, profile.bytes, rule), calibrated_on(made, plan));
    }
    for (const BucketPlan& plan : made) EXPECT_TRUE(is_made_by_a_cap(plan, profile.bytes, rule));
  }
}

}  // namespace
}  // namespace firkin
