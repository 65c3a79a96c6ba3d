#include "firkin/plan/baselines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/units.h"
#include "firkin/plan/optimal_plan.h"
#include "helpers.h"
#include "random_instance.h"

namespace firkin {
namespace {

using testing::ElementsAre;

std::vector<int64_t> counts(const BucketPlan& plan) {
  std::vector<int64_t> result;
  for (const Bucket& bucket : plan.buckets) result.push_back(bucket.count);
  return result;
}

TEST(MgWfbp, MergesATensorThatIsReadyWithinOneStartUp) {
  // Start-up 1 s; 8 bytes take 2 s. t1 is ready 0.5 s after t0 could be sent, t2 5 s after t1.
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({8, 8, 8}, {1, 1.5, 6.5}), linear_curve(1, 0.125))), ElementsAre(2, 1));
}

TEST(MgWfbp, MergesWhatIsReadyBeforeTheLinkIsFree) {
  // t0 is sent from 1 to 11 s. t1 (ready 4) can start at 11; t2 is ready at 8, before that: merged. t3 at 12.5 is too late.
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({72, 8, 8, 8}, {1, 4, 8, 12.5}), linear_curve(1, 0.125))), ElementsAre(1, 2, 1));
}

TEST(MgWfbp, DoesNotWaitExactlyOneStartUp) {
  EXPECT_THAT(counts(mg_wfbp_plan(make_profile({8, 8}, {1, 2}), linear_curve(1, 0.125))), ElementsAre(1, 1));
}

TEST(Baselines, AreThePublishedPlans) {
  const TensorProfile profile = make_profile({kMiB, 20 * kMiB, 20 * kMiB, 100 * kMiB}, {1, 2, 3, 4});
  const auto baselines = simulate_baselines(profile, linear_costs(1, 1e-9), {}, 4);
  ASSERT_EQ(baselines.size(), 5u);
  EXPECT_EQ(baselines[0].name, "pytorch");
  EXPECT_THAT(counts(baselines[0].plan), ElementsAre(1, 2, 1));
  EXPECT_EQ(baselines[1].name, "horovod");
  EXPECT_THAT(counts(baselines[1].plan), ElementsAre(3, 1));
  EXPECT_THAT(counts(baselines[2].plan), ElementsAre(4));
  EXPECT_THAT(counts(baselines[3].plan), ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(baselines[4].name, "mg_wfbp");
}

TEST(Baselines, RegretIsWhatTheyTakeMoreThanTheBest) {
  // One bucket of 24 bytes, ready at 2: 1 + 3 s after backward, so 6 s against 4.
  const auto baselines = simulate_baselines(make_profile({8, 16}, {1, 2}), linear_costs(1, 0.125), {}, 4);
  EXPECT_DOUBLE_EQ(baselines[2].timeline.end_s, 6);
  EXPECT_DOUBLE_EQ(baselines[2].regret, 0.5);
}

TEST(Baselines, NeverBeatTheOptimalPlan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(40);
    const CommCosts costs = random.costs();
    const double best = find_optimal_plan(profile, costs).timeline.end_s;
    for (const Baseline& baseline : simulate_baselines(profile, costs, {}, best)) EXPECT_GE(baseline.regret, -2e-6) << baseline.name;
  }
}

}  // namespace
}  // namespace firkin
