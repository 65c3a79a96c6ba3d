#include "firkin/plan/best_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"
#include "random_instance.h"

namespace firkin {
namespace {

using testing::ElementsAre;

struct BruteForce {
  double end_s = 0;   // of the best plan
  size_t fewest = 0;  // buckets of any plan within the tolerance of it
};

// Simulates every plan of contiguous buckets that the options allow.
BruteForce try_every_plan(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options) {
  const size_t tensors = profile.bytes.size();
  std::vector<std::pair<double, size_t>> results;
  for (uint32_t cuts = 0; cuts < (uint32_t{1} << (tensors - 1)); ++cuts) {
    BucketPlan plan;
    for (size_t first = 0, i = 0; i < tensors; ++i) {
      if (i + 1 < tensors && (cuts >> i & 1) == 0) continue;
      plan.buckets.push_back({static_cast<int64_t>(first), static_cast<int64_t>(i + 1 - first)});
      first = i + 1;
    }
    bool allowed = true;
    const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
    for (size_t k = 0; k < bytes.size(); ++k) allowed = allowed && (plan.buckets[k].count == 1 || bytes[k] <= options.largest_bucket_bytes);
    if (allowed) results.emplace_back(simulate(profile, plan, costs, options.simulation).end_s, plan.buckets.size());
  }
  BruteForce best = {std::min_element(results.begin(), results.end())->first, tensors};
  for (const auto& [end_s, buckets] : results) {
    if (end_s <= best.end_s * (1 + options.tolerance)) best.fewest = std::min(best.fewest, buckets);
  }
  return best;
}

void expect_equals_brute_force(const TensorProfile& profile, const CommCosts& costs, const SearchOptions& options, uint64_t seed) {
  const BestPlan found = find_best_plan(profile, costs, options);
  const BruteForce best = try_every_plan(profile, costs, options);
  ASSERT_TRUE(found.exact);
  ASSERT_NO_THROW(check_plan(found.plan, static_cast<int64_t>(profile.bytes.size())));
  EXPECT_LE(found.timeline.end_s, best.end_s * (1 + options.tolerance) * (1 + 1e-11)) << "seed " << seed;
  EXPECT_EQ(found.plan.buckets.size(), best.fewest) << "seed " << seed;
}

TEST(OptimalPlan, EqualsBruteForceOn2000RandomInstances) {
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(1, 12));
    expect_equals_brute_force(profile, random.costs(), {}, seed);
  }
}

TEST(OptimalPlan, EqualsBruteForceUnderALimitAndATightTolerance) {
  for (uint64_t seed = 10000; seed < 10400; ++seed) {
    RandomInstance random(seed);
    const int64_t tensors = random.integer(1, 10);
    const TensorProfile profile = random.profile(tensors);
    SearchOptions options = {.tolerance = random.integer(0, 1) == 0 ? 1e-10 : 0.05};
    options.largest_bucket_bytes = static_cast<int64_t>(std::pow(10, random.uniform(3, 6.5)));
    expect_equals_brute_force(profile, random.costs(), options, seed);
  }
}

TEST(OptimalPlan, EqualsBruteForceWithOverhead) {
  for (uint64_t seed = 20000; seed < 20400; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(1, 10));
    const SearchOptions options = {.simulation = {.overhead_s = std::pow(10, random.uniform(-5, -1))}};
    expect_equals_brute_force(profile, random.costs(), options, seed);
  }
}

TEST(OptimalPlan, IsNeverWorseThanAnyUniformCap) {
  for (uint64_t seed = 30000; seed < 30100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(60);
    const CommCosts costs = random.costs();
    const double optimal = find_best_plan(profile, costs).timeline.end_s;
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      EXPECT_LE(optimal, find_best_uniform_cap(profile, costs, {.rule = rule}).timeline.end_s * (1 + 1e-6)) << "seed " << seed;
    }
  }
}

TEST(OptimalPlan, UnderContentionIsNeverWorseThanAnyUniformCapNorThePlanWithoutContention) {
  for (uint64_t seed = 40000; seed < 40030; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(30);
    const CommCosts costs = random.costs();
    const SearchOptions options = {.simulation = {.compute_slowdown = random.uniform(1.01, 1.5), .comm_slowdown = random.uniform(1, 2)}};
    const BestPlan found = find_best_plan(profile, costs, options);
    EXPECT_FALSE(found.exact);
    const double limit = found.timeline.end_s * (1 - 2e-6);
    EXPECT_GE(simulate(profile, find_best_plan(profile, costs).plan, costs, options.simulation).end_s, limit) << "seed " << seed;
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      EXPECT_GE(find_best_uniform_cap(profile, costs, {.rule = rule}, options).timeline.end_s, limit) << "seed " << seed;
    }
  }
}

TEST(OptimalPlan, UnderContentionIsWithinTwoPercentOfBruteForce) {
  for (uint64_t seed = 50000; seed < 50060; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(2, 9));
    const CommCosts costs = random.costs();
    const SearchOptions options = {.simulation = {.compute_slowdown = random.uniform(1.01, 1.5), .comm_slowdown = random.uniform(1, 2)}};
    EXPECT_LE(find_best_plan(profile, costs, options).timeline.end_s, 1.02 * try_every_plan(profile, costs, options).end_s)
        << "seed " << seed;
  }
}

TEST(OptimalPlan, HidesAllButTheLastBucketWhereCommunicationIsFast) {
  // a(x) = 0.25 s + x / 32: the last tensor must travel alone, and two buckets are enough for that.
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  const BestPlan best = find_best_plan(profile, linear_costs(0.25, 1.0 / 32));
  EXPECT_THAT(counts(best.plan), ElementsAre(3, 1));
  EXPECT_DOUBLE_EQ(best.timeline.end_s, 4.5);
}

TEST(OptimalPlan, IsOneBucketWhereLatencyIsEverything) {
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  EXPECT_THAT(counts(find_best_plan(profile, linear_costs(100, 1.0 / 1024)).plan), ElementsAre(4));
}

TEST(OptimalPlan, PrefersFewerBucketsWithinTheTolerance) {
  // One bucket ends at 4 + 1.5, two at 4.75: equal to a tolerance of a quarter, not to one of a tenth.
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  const CommCosts costs = linear_costs(0.5, 1.0 / 32);
  EXPECT_EQ(find_best_plan(profile, costs, {.tolerance = 0.25}).plan.buckets.size(), 1u);
  EXPECT_EQ(find_best_plan(profile, costs, {.tolerance = 0.1}).plan.buckets.size(), 2u);
}

TEST(OptimalPlan, KeepsBucketsWithinTheLimitUnlessASingleTensorExceedsIt) {
  const TensorProfile profile = make_profile({8, 8, 40, 8}, {1, 1, 1, 1});
  EXPECT_THAT(counts(find_best_plan(profile, linear_costs(100, 1), {.largest_bucket_bytes = 16}).plan), ElementsAre(2, 1, 1));
}

// Two runs that stay together hold about a fiftieth of all bytes: no more than that is sent later.
TEST(OptimalPlan, OfRunsOfTensorsIsNearTheExactOne) {
  for (uint64_t seed = 60000; seed < 60100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(300);
    const CommCosts costs = linear_costs(1e-3, std::pow(10, random.uniform(-9, -7)));
    const auto end_s = [&](const BucketPlan& plan) { return simulate(profile, plan, costs).end_s; };
    const BucketPlan of_runs = exact_plan(profile, costs, {}, 100);
    ASSERT_NO_THROW(check_plan(of_runs, 300));
    EXPECT_LE(end_s(of_runs), 1.02 * end_s(exact_plan(profile, costs, {}))) << "seed " << seed;
  }
}

TEST(OptimalPlan, OfRunsOfTensorsRespectsTheLimit) {
  RandomInstance random(1);
  const TensorProfile profile = random.profile(300);
  const BucketPlan plan = exact_plan(profile, linear_costs(10, 1e-9), {.largest_bucket_bytes = 300000}, 100);
  const std::vector<int64_t> bytes = bucket_bytes(plan, profile.bytes);
  for (size_t k = 0; k < bytes.size(); ++k) EXPECT_TRUE(plan.buckets[k].count == 1 || bytes[k] <= 300000);
}

TEST(OptimalPlan, OfTwentyThousandTensorsIsFoundAndNotCalledExact) {
  RandomInstance random(2);
  const TensorProfile profile = random.profile(20000);
  const CommCosts costs = linear_costs(1e-4, 1e-9);
  const BestPlan best = find_best_plan(profile, costs);
  EXPECT_FALSE(best.exact);
  ASSERT_NO_THROW(check_plan(best.plan, 20000));
  EXPECT_LE(best.timeline.end_s, 1.001 * find_best_uniform_cap(profile, costs, {}).timeline.end_s);
}

TEST(OptimalPlan, OfNoTensorsIsNoBucket) {
  EXPECT_TRUE(find_best_plan({}, linear_costs(1, 1)).plan.buckets.empty());
}

TEST(OptimalPlan, RejectsOptionsWithoutMeaning) {
  const TensorProfile profile = make_profile({8}, {1});
  const auto error = [&](const SearchOptions& options) { return error_of([&] { find_best_plan(profile, linear_costs(1, 1), options); }); };
  EXPECT_EQ(error({.tolerance = -1}), "the tolerance is -1; expected at least 0");
  EXPECT_EQ(error({.largest_bucket_bytes = 0}), "the largest bucket is 0 bytes; expected at least 1");
}

}  // namespace
}  // namespace firkin
