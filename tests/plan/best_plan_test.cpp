// The best plan, the best uniform cap, and the plans that others publish.
#include "firkin/plan/best_plan.h"

#include "../test.h"
#include "firkin/base/units.h"
#include "helpers.h"

namespace firkin {
namespace {

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

TEST(OptimalPlan, EqualsBruteForceWithALimitATightToleranceAndOverheadToo) {
  for (uint64_t seed = 0; seed < 2800; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(random.integer(1, seed < 2000 ? 12 : 10));
    SearchOptions options;
    if (seed >= 2000 && seed % 2 == 0) {
      options.tolerance = random.integer(0, 1) == 0 ? 1e-10 : 0.05;
      options.largest_bucket_bytes = static_cast<int64_t>(std::pow(10, random.uniform(3, 6.5)));
    } else if (seed >= 2000) {
      options.simulation.overhead_s = std::pow(10, random.uniform(-5, -1));
    }
    expect_equals_brute_force(profile, random.costs(), options, seed);
  }
}

TEST(OptimalPlan, IsNeverWorseThanAnyUniformCapNorAnyBaseline) {
  for (uint64_t seed = 30000; seed < 30100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(60);
    const CommCosts costs = random.costs();
    const double optimal = find_best_plan(profile, costs).timeline.end_s;
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      EXPECT_LE(optimal, find_best_uniform_cap(profile, costs, {.rule = rule}).timeline.end_s * (1 + 1e-6)) << "seed " << seed;
    }
    for (const Baseline& baseline : baselines(profile, costs)) {
      EXPECT_LE(optimal, simulate(profile, baseline.plan, costs).end_s * (1 + 2e-6)) << baseline.name;
    }
  }
}

TEST(OptimalPlan, UnderContentionIsNeverWorseThanItsRivalsAndWithinTwoPercentOfBruteForce) {
  for (uint64_t seed = 40000; seed < 40090; ++seed) {
    SCOPED_TRACE(seed);
    RandomInstance random(seed);
    const bool is_small = seed >= 40030;  // enough to try every plan
    const TensorProfile profile = random.profile(is_small ? random.integer(2, 9) : 30);
    const CommCosts costs = random.costs();
    const SearchOptions options = {.simulation = {.compute_slowdown = random.uniform(1.01, 1.5)}};
    const BestPlan found = find_best_plan(profile, costs, options);
    if (is_small) {
      EXPECT_LE(found.timeline.end_s, 1.02 * try_every_plan(profile, costs, options).end_s);
      continue;
    }
    EXPECT_FALSE(found.exact);
    const double limit = found.timeline.end_s * (1 - 2e-6);
    EXPECT_GE(simulate(profile, find_best_plan(profile, costs).plan, costs, options.simulation).end_s, limit);
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      EXPECT_GE(find_best_uniform_cap(profile, costs, {.rule = rule}, options).timeline.end_s, limit);
    }
  }
}

TEST(OptimalPlan, HidesWhatItCanInAsFewBucketsAsTheToleranceAllows) {
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  // The last tensor must travel alone, and two buckets are enough for that; where latency is everything, one is.
  const BestPlan fast = find_best_plan(profile, linear_costs(0.25, 1.0 / 32));
  EXPECT_THAT(counts(fast.plan), ElementsAre(3, 1));
  EXPECT_DOUBLE_EQ(fast.timeline.end_s, 4.5);
  EXPECT_THAT(counts(find_best_plan(profile, linear_costs(100, 1.0 / 1024)).plan), ElementsAre(4));
  // One bucket ends at 4 + 1.5, two at 4.75: equal to a tolerance of a quarter, not to one of a tenth.
  const CommCosts costs = linear_costs(0.5, 1.0 / 32);
  EXPECT_EQ(find_best_plan(profile, costs, {.tolerance = 0.25}).plan.buckets.size(), 1u);
  EXPECT_EQ(find_best_plan(profile, costs, {.tolerance = 0.1}).plan.buckets.size(), 2u);
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
  EXPECT_EQ(error({.largest_bucket_bytes = 0}), "the largest bucket, bytes, is 0; expected at least 1");
}

TEST(MgWfbp, MergesATensorThatIsReadyWithinOneStartUpOrBeforeTheLinkIsFree) {
  const CostCurve curve = linear_curve(1, 0.125);
  // Start-up 1 s; 8 bytes take 2 s. t1 is ready 0.5 s after t0 could be sent, t2 5 s after t1.
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({8, 8, 8}, {1, 1.5, 6.5}), curve)), ElementsAre(2, 1));
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({8, 8}, {1, 2}), curve)), ElementsAre(1, 1));  // exactly one start-up
  // t0 is sent from 1 to 11 s. t1 (ready 4) can start at 11; t2 is ready at 8, before that: merged. t3 at 12.5 is too late.
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({72, 8, 8, 8}, {1, 4, 8, 12.5}), curve)), ElementsAre(1, 2, 1));
}

TEST(Baselines, AreThePublishedPlans) {
  const TensorProfile profile = make_profile({kMiB, 20 * kMiB, 20 * kMiB, 100 * kMiB}, {1, 2, 3, 4});
  const std::vector<Baseline> plans = baselines(profile, linear_costs(1, 1e-9));
  ASSERT_EQ(plans.size(), 5u);
  EXPECT_EQ(plans[0].name, "pytorch");
  EXPECT_THAT(counts(plans[0].plan), ElementsAre(1, 2, 1));
  EXPECT_EQ(plans[1].name, "horovod");
  EXPECT_THAT(counts(plans[1].plan), ElementsAre(3, 1));
  EXPECT_THAT(counts(plans[2].plan), ElementsAre(4));
  EXPECT_THAT(counts(plans[3].plan), ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(plans[4].name, "mg_wfbp");
}

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

TEST(CapsWithSameBuckets, OneBucketHasNoHighestCap) {
  const std::vector<int64_t> sizes = {4, 3};
  const CapOptions options = {.cap_bytes = 7, .rule = CapRule::kAtMost};
  EXPECT_EQ(caps_with_same_buckets(sizes, options, assign_buckets(sizes, options)).highest_cap_bytes, kNoLimit);
}

TEST(CapsWithSameBuckets, AreExactlyTheCapsThatMakeTheSamePlan) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomInstance random(seed);
    std::vector<int64_t> sizes;
    for (int64_t i = random.integer(1, 12); i > 0; --i) sizes.push_back(random.integer(0, 9));
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      CapOptions options = {.cap_bytes = random.integer(1, 60), .rule = rule};
      if (random.integer(0, 2) == 0) options.first_cap_bytes = random.integer(1, 12);
      const BucketPlan plan = assign_buckets(sizes, options);
      ASSERT_NO_THROW(check_plan(plan, std::ssize(sizes)));
      const CapInterval interval = caps_with_same_buckets(sizes, options, plan);
      for (int64_t cap = 1; cap <= 120; ++cap) {
        options.cap_bytes = cap;
        const bool inside = interval.lowest_cap_bytes <= cap && cap <= interval.highest_cap_bytes;
        EXPECT_EQ(assign_buckets(sizes, options) == plan, inside) << "seed " << seed << " cap " << cap;
      }
    }
  }
}

TEST(RoundestCap, IsAMultipleOfTheLargestPowerOfTwo) {
  EXPECT_EQ(roundest_cap({25 * kMiB + 1, 27 * kMiB}), 26 * kMiB);
  EXPECT_EQ(roundest_cap({5, 5}), 5);
  EXPECT_EQ(roundest_cap({3, 1000}), 4);  // not more than twice the lowest
  EXPECT_EQ(roundest_cap({1, 1000}), 512);
  EXPECT_EQ(roundest_cap({1, 1}), 1);
  EXPECT_EQ(roundest_cap({100, kNoLimit}), 128);
}

TEST(RoundestCap, HasFewDecimalsWhereNoShortMultipleOfAPowerOfTwoFits) {
  EXPECT_EQ(roundest_cap({kMiB * 7 / 10, kMiB * 8 / 10}), kMiB * 3 / 4);
  const auto bytes = [](double mib) { return std::llround(mib * kMiB); };
  EXPECT_EQ(roundest_cap({kMiB / 2 + 1, kMiB / 2 + kKiB}), bytes(0.5005));
  EXPECT_EQ(roundest_cap({bytes(2.9199), bytes(2.9232)}), bytes(2.92));
  EXPECT_EQ(roundest_cap({bytes(17.78), bytes(17.83)}), bytes(17.8));
  EXPECT_EQ(roundest_cap({629'000, 629'000}), 629'000);
}

TEST(BestUniformCap, EqualsTryingEveryCap) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    RandomInstance random(seed);
    std::vector<int64_t> sizes;
    std::vector<double> ready_s;
    for (int64_t i = 0, n = random.integer(1, 12); i < n; ++i) {
      sizes.push_back(random.integer(0, 9));
      ready_s.push_back(static_cast<double>(i));
    }
    const TensorProfile profile = make_profile(sizes, ready_s);
    const CommCosts costs = linear_costs(random.uniform(0.1, 5), random.uniform(0.01, 1));
    for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
      double best = std::numeric_limits<double>::infinity();
      size_t fewest = 0;
      for (int64_t cap = 1; cap <= 120; ++cap) {
        const BucketPlan plan = assign_buckets(sizes, {.cap_bytes = cap, .rule = rule});
        const double end_s = simulate(profile, plan, costs).end_s;
        if (end_s < best * (1 - 1e-9) || (end_s < best * (1 + 1e-9) && plan.buckets.size() < fewest)) {
          best = std::min(best, end_s);
          fewest = plan.buckets.size();
        }
      }
      const BestUniformCap found = find_best_uniform_cap(profile, costs, {.rule = rule}, {.tolerance = 1e-9});
      EXPECT_TRUE(found.exhaustive);
      EXPECT_NEAR(found.timeline.end_s, best, 1e-8 * best) << "seed " << seed;
      EXPECT_EQ(found.plan.buckets.size(), fewest) << "seed " << seed;
      EXPECT_EQ(assign_buckets(sizes, {.cap_bytes = roundest_cap(found.caps), .rule = rule}), found.plan) << "seed " << seed;
    }
  }
}

TEST(BestUniformCap, TriesEachDistinctPartitionOnce) {
  // Four equal tensors: caps for 1, 2, 3 and 4 of them.
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  EXPECT_EQ(distinct_plans(profile, {.rule = CapRule::kAtMost}).plans.size(), 4u);
}

TEST(BestUniformCap, RespectsTheLimitOnBucketBytes) {
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 1, 1, 1});
  const UniformCap best =
      find_best_uniform_cap(profile, linear_costs(100, 0.125), {.rule = CapRule::kAtMost}, {.largest_bucket_bytes = 20});
  EXPECT_EQ(best.plan.buckets.size(), 2u);
  EXPECT_EQ(best.caps.lowest_cap_bytes, 16);
  EXPECT_EQ(best.caps.highest_cap_bytes, 23);
}

TEST(BestUniformCap, SkipsCapsThatDifferByLittleWhenThereAreTooMany) {
  RandomInstance random(1);
  const TensorProfile profile = random.profile(400);
  const CommCosts costs = linear_costs(1e-3, 1e-8);
  const BestUniformCap all = find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost});
  const BestUniformCap some = find_best_uniform_cap(profile, costs, {.rule = CapRule::kAtMost}, {}, 100000);
  EXPECT_TRUE(all.exhaustive);
  EXPECT_FALSE(some.exhaustive);
  EXPECT_LE(all.timeline.end_s, some.timeline.end_s * (1 + 1e-6));
  EXPECT_NEAR(some.timeline.end_s, all.timeline.end_s, 0.01 * all.timeline.end_s);
}

}  // namespace
}  // namespace firkin
