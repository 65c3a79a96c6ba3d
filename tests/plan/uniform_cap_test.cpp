#include "firkin/plan/best_plan.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "helpers.h"
#include "random_instance.h"

namespace firkin {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

CapInterval interval_of(const std::vector<int64_t>& sizes, const CapOptions& options) {
  return caps_with_same_buckets(sizes, options, assign_buckets(sizes, options));
}

TEST(CapsWithSameBuckets, AtMostHasRoomForWhatABucketHoldsAndNotForTheNext) {
  // Buckets 4+3 | 8 | 1+2: room for 7, but not for 7 + 8, nor 8 + 1.
  const CapInterval interval = interval_of({4, 3, 8, 1, 2}, {.cap_bytes = 8, .rule = CapRule::kAtMost});
  EXPECT_EQ(interval.lowest_cap_bytes, 7);
  EXPECT_EQ(interval.highest_cap_bytes, 8);
}

TEST(CapsWithSameBuckets, CloseWhenFullIsFullWithTheLastTensorAndNotBefore) {
  // Buckets 4+3+8 | 1+2: not full with 7, full with 15.
  const CapInterval interval = interval_of({4, 3, 8, 1, 2}, {.cap_bytes = 8, .rule = CapRule::kCloseWhenFull});
  EXPECT_EQ(interval.lowest_cap_bytes, 8);
  EXPECT_EQ(interval.highest_cap_bytes, 15);
}

TEST(CapsWithSameBuckets, OneBucketHasNoHighestCap) {
  EXPECT_EQ(interval_of({4, 3}, {.cap_bytes = 7, .rule = CapRule::kAtMost}).highest_cap_bytes, kNoLimit);
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
