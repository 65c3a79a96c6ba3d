#include "firkin/plan/ordered_plan.h"

#include "../test.h"
#include "firkin/base/file.h"
#include "firkin/plan/best_plan.h"
#include "firkin/plan/uncertainty.h"
#include "firkin/stats/estimates.h"
#include "helpers.h"
#include "import/import.h"

namespace firkin {
namespace {

// Five layers of 8 bytes, one ready each second, needed in reverse by a forward pass of 5 s.
TensorProfile five_layers() {
  return with_forward(make_profile({8, 8, 8, 8, 8}, {1, 2, 3, 4, 5}), 5);
}

TEST(LaunchOrderByNeed, SendsWhatIsReadyAndOfThatWhatForwardNeedsFirst) {
  // Each takes 2 s: from 1, 3, 5, ... At 3 s tensors 1 and 2 are ready, and 2 is needed earlier; at 5 s tensors 1, 3 and 4.
  EXPECT_THAT(launch_order_by_need(five_layers(), one_tensor_per_bucket(5), kCosts), ElementsAre(0, 2, 4, 3, 1));
}

TEST(LaunchOrderByNeed, IsTheReadyOrderWhereTheLinkKeepsUp) {
  EXPECT_THAT(launch_order_by_need(five_layers(), one_tensor_per_bucket(5), linear_costs(0.5, 0.01)), IsEmpty());
}

TEST(OrderedPlan, IsFasterThanAnyPlanThatWaitsForItsLastBucket) {
  const TensorProfile profile = five_layers();
  const CommCosts costs = linear_costs(0.1, 0.2);  // 40 bytes take 8 s of a computation of 10 s
  const double bucketed_s = find_best_plan(profile, costs).timeline.end_s + profile.forward_s;
  const OrderedPlan ordered = find_ordered_plan(profile, costs);
  EXPECT_LT(ordered.pipeline.period_s, 0.9 * bucketed_s);
  EXPECT_GE(ordered.pipeline.period_s, ordered.bound_s);
  EXPECT_NO_THROW(check_plan(ordered.plan, 5));
}

TEST(OrderedPlan, HasFewBucketsWhereMoreGainNothingThatOneCouldMeasure) {
  const TensorProfile profile = with_forward(even_profile(400, 10000, 0.4), 0.2);
  // Short all-reduces end behind the agreement.
  const CostCurve curve({{64, 4e-5}, {1000, 3e-5}, {1000000000, 4.03e-3}});
  const OrderedPlan ordered = find_ordered_plan(profile, {curve, curve}, {.simulation = {.agreement_s = 4e-5}});
  EXPECT_LE(ordered.pipeline.period_s, 1.0001 * ordered.bound_s);
  EXPECT_LE(ordered.plan.buckets.size(), 4u);
}

TEST(OrderedPlan, RespectsItsLimits) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 25), most = random.integer(1, 6);
    const TensorProfile profile = random.profile_with_forward(tensors);
    const CommCosts costs = random.costs();
    const OrderedPlan small = find_ordered_plan(profile, costs, {.largest_bucket_bytes = 100000});
    ASSERT_NO_THROW(check_plan(small.plan, tensors));
    const std::vector<int64_t> bytes = bucket_bytes(small.plan, profile.bytes);
    for (size_t k = 0; k < bytes.size(); ++k) {
      EXPECT_TRUE(small.plan.buckets[k].count == 1 || bytes[k] <= 100000);
    }
    const OrderedPlan few = find_ordered_plan(profile, costs, {.most_buckets = most});
    ASSERT_NO_THROW(check_plan(few.plan, tensors));
    EXPECT_LE(few.plan.buckets.size(), static_cast<size_t>(most));
  }
}

TEST(OrderedPlan, OfAProfileWithoutForwardIsNoSlowerThanTheBestPlan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(1, 25));
    const CommCosts costs = random.costs();
    const double best = find_best_plan(profile, costs).timeline.end_s;
    EXPECT_LE(find_ordered_plan(profile, costs).pipeline.period_s, best * (1 + 3e-6)) << "seed " << seed;
  }
}

TEST(OrderedPlan, WithoutTensorsIsTheComputation) {
  TensorProfile profile = with_forward({}, 2);
  profile.backward_s = 3;
  EXPECT_DOUBLE_EQ(find_ordered_plan(profile, linear_costs(1, 1)).pipeline.period_s, 5);
}

TEST(OrderedPlan, RejectsOptionsOutOfBounds) {
  const auto error = [](const SearchOptions& options) {
    return error_of([&] { find_ordered_plan(make_profile({1}, {1}), linear_costs(1, 1), options); });
  };
  EXPECT_EQ(error({.tolerance = -1}), "the tolerance is -1; expected at least 0");
  EXPECT_EQ(error({.most_buckets = 0}), "the most buckets is 0; expected at least 1");
  const TensorProfile two = make_profile({8, 8}, {1, 2});
  EXPECT_EQ(error_of([&] { find_ordered_plan(two, linear_costs(1, 1), {.largest_bucket_bytes = 8, .most_buckets = 1}); }),
            "no plan of at most 1 buckets, of at most 8 bytes; expected more");
  EXPECT_EQ(error({.largest_bucket_bytes = 0}), "the largest bucket, bytes, is 0; expected at least 1");
}

// gpt2-large's layer times on an A100 (data/cmsc828g) at a sixteenth of its bytes, with a forward pass half as long as backward.
TensorProfile small_gpt2_large() {
  const std::string folder = FIRKIN_SOURCE_DIR "/data/cmsc828g/";
  TensorProfile profile = *import_files({folder + "layer-sizes-gpt2_large-bs4.csv", folder + "layer-times-gpt2_large-bs4.csv"}).profile;
  for (int64_t& bytes : profile.bytes) bytes /= 16;
  return with_forward(profile, profile.backward_s / 2);
}

// In an order for exact ready times, a bucket that is late leaves holes on the link.
TEST(OrderedPlan, IsLaunchedInAnOrderThatIsRobustInTheErrorsOfTheModel) {
  const TensorProfile profile = small_gpt2_large();
  for (const double bandwidth : {0.06e9, 0.1216e9, 0.25e9, 0.5e9, 1.2e9}) {
    const CommCosts costs = linear_costs(2e-4, 1 / bandwidth);
    const std::vector<InputDraw> draws = with_model_errors({}, {.costs = costs});
    const BucketPlan exact = find_ordered_plan(profile, costs, {.simulation = with_agreement({}, costs)}).plan;
    const BucketPlan robust = predict_ordered(profile, costs, 1, {}, draws).plan;
    const double gain = 1 - mean(drawn_periods(profile, robust, draws)) / mean(drawn_periods(profile, exact, draws));
    EXPECT_EQ(robust.buckets, exact.buckets);
    EXPECT_GE(gain, bandwidth == 0.25e9 ? 0.01 : 0);
  }
}

TEST(OrderedPlan, OfGpt2LargeIsNearTheBoundWhereCommunicationDominatesAndNoSlowerThanTheBestCapElsewhere) {
  const TensorProfile profile = small_gpt2_large();
  for (const auto& [costs, most_of_bucketed, most_of_bound] :
       {std::tuple{linear_costs(2e-4, 1 / 0.1216e9), 0.82, 1.07},  // 1 Gbit/s, two ranks
        {linear_costs(2e-5, 1 / 1.216e9), 1 + 1e-6, 2.0}}) {
    const double bucketed_s = find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost}).timeline.end_s + profile.forward_s;
    const OrderedPlan ordered = find_ordered_plan(profile, costs);
    EXPECT_LE(ordered.pipeline.period_s, most_of_bucketed * bucketed_s);
    EXPECT_LE(ordered.pipeline.period_s, most_of_bound * ordered.bound_s);
  }
}

// The shortest period of all partitions, each launched by need.
double best_of_all_s(const TensorProfile& profile, const CommCosts& costs, const SimulationOptions& options) {
  const size_t cuts = profile.bytes.size() - 1;
  double best_s = std::numeric_limits<double>::infinity();
  for (uint32_t set = 0; set < uint32_t{1} << cuts; ++set) {
    std::vector<int64_t> counts = {1};
    for (size_t i = 0; i < cuts; ++i) {
      if ((set >> i & 1) != 0) counts.push_back(0);
      ++counts.back();
    }
    BucketPlan plan = plan_of_counts(counts);
    plan.launch_order = launch_order_by_need(profile, plan, costs, options);
    best_s = std::min(best_s, simulate_pipeline(profile, plan, costs, options).period_s);
  }
  return best_s;
}

TEST(OrderedPlan, IsMostlyTheBestOfAllPartitionsOn400RandomInstances) {
  int above_tolerance = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile_with_forward(random.integer(1, 6));
    const CommCosts costs = random.costs();
    SearchOptions options;
    if (seed % 3 == 0) options.simulation = {.overhead_s = 1e-3};
    if (seed % 4 == 0) options.simulation.compute_slowdown = random.uniform(1, 1.5);
    const double best = best_of_all_s(profile, costs, options.simulation);
    const double found = find_ordered_plan(profile, costs, options).pipeline.period_s;
    EXPECT_GE(found, best * (1 - 1e-9)) << "seed " << seed;
    EXPECT_LE(found, best * 1.05) << "seed " << seed;
    if (found > best * (1 + 3e-6)) ++above_tolerance;
  }
  EXPECT_LE(above_tolerance, 20);
}

}  // namespace
}  // namespace firkin