#include "firkin/plan/best_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/units.h"
#include "helpers.h"
#include "random_instance.h"

namespace firkin {
namespace {

using testing::ElementsAre;

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

TEST(Baselines, NeverBeatTheOptimalPlan) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    RandomInstance random(seed);
    const TensorProfile profile = random.profile(40);
    const CommCosts costs = random.costs();
    const double best = find_best_plan(profile, costs).timeline.end_s;
    for (const Baseline& baseline : baselines(profile, costs)) {
      EXPECT_GE(simulate(profile, baseline.plan, costs).end_s, best * (1 - 2e-6)) << baseline.name;
    }
  }
}

}  // namespace
}  // namespace firkin
