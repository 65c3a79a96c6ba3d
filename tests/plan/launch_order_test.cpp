// The launch order that is chosen from observed steps.
#include "firkin/plan/ordered_plan.h"

#include <random>

#include "../test.h"

namespace firkin {
namespace {

// Buckets become ready one second apart, last layer first, and take two seconds each; forward uses them in reverse.
ObservedTraining five_buckets() {
  return {
      .steps = {{.ready_s = {1, 2, 3, 4, 5}, .backward_s = 5}}, .transfer_s = {2, 2, 2, 2, 2}, .needed_s = {4, 3, 2, 1, 0}, .forward_s = 5};
}

LaunchOrder of_slack(const std::vector<LaunchOrder>& orders, double slack) {
  return *std::ranges::find(orders, slack, &LaunchOrder::slack);
}

TEST(LaunchOrders, GoFromTheOrderOfNeedToTheOrderInWhichBucketsAreReady) {
  const auto orders = launch_orders(five_buckets());
  EXPECT_THAT(of_slack(orders, 0).order, ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(of_slack(orders, 1).order, ElementsAre(0, 2, 4, 3, 1));  // at 3 s buckets 1 and 2 are ready, and 2 is needed earlier
  EXPECT_THAT(of_slack(orders, 8).order, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(launch_orders(five_buckets(), {1}).front().order, of_slack(orders, 1).order);
}

TEST(LaunchOrders, TellThePeriodOfBackwardAndTheForwardBehindIt) {
  const auto orders = launch_orders(five_buckets());
  // They arrive at 3, 5, 7, 9 and 11 s. Forward begins at 5 s, waits 2 s for bucket 4 and 1 s for bucket 3.
  EXPECT_DOUBLE_EQ(of_slack(orders, 1).period_s, 13);
  // Nothing is sent before backward ends: bucket 4 arrives at 7 s, another every 2 s, and forward uses one a second.
  EXPECT_DOUBLE_EQ(orders[0].period_s, 16);
}

// One step in two is late: the order for the usual step stalls in the other.
TEST(RobustLaunchOrder, ExpectsGradientsLaterWhereStepsDiffer) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> lateness(1, 1.8);
  constexpr int kBuckets = 20;
  ObservedTraining training;
  training.transfer_s.assign(kBuckets, 0.9);
  for (int i = 0; i < kBuckets; ++i) training.needed_s.push_back(0.4 * (kBuckets - 1 - i));
  training.forward_s = 0.4 * kBuckets;
  for (int step = 0; step < 8; ++step) {
    ObservedStep& seen = training.steps.emplace_back();
    double now = 0;
    for (int i = 0; i < kBuckets; ++i) seen.ready_s.push_back(now += 0.5 * lateness(random));
    seen.backward_s = now;
  }
  const LaunchOrder robust = robust_launch_order(training);
  const auto orders = launch_orders(training);
  EXPECT_LE(robust.period_s, of_slack(orders, 0.7).period_s);
  EXPECT_LE(robust.period_s, of_slack(orders, 8).period_s);
  EXPECT_LE(robust.period_s, 1.005 * std::ranges::min(orders, {}, &LaunchOrder::period_s).period_s);
}

TEST(RobustLaunchOrder, IsAPermutationForAnyTimes) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> time(0, 10);
  for (int trial = 0; trial < 200; ++trial) {
    const auto buckets = static_cast<size_t>(1 + trial % 9);
    const auto times = [&] {
      std::vector<double> result(buckets);
      std::ranges::generate(result, [&] { return trial % 3 == 0 ? 0 : time(random); });
      return result;
    };
    ObservedTraining training{.steps = {}, .transfer_s = times(), .needed_s = times(), .forward_s = 10};
    for (int step = 0; step < 3; ++step) training.steps.push_back({.ready_s = times(), .backward_s = 10});
    const BucketPlan plan = {.buckets = one_tensor_per_bucket(buckets).buckets, .launch_order = robust_launch_order(training).order};
    EXPECT_NO_THROW(check_plan(plan, std::ssize(plan.buckets)));
  }
}

TEST(RobustLaunchOrder, RefusesObservationsThatDoNotBelongTogether) {
  EXPECT_THROW(robust_launch_order({}), InputError);
  ObservedTraining training = five_buckets();
  training.steps[0].ready_s.pop_back();
  EXPECT_THROW(robust_launch_order(training), InputError);
}

}  // namespace
}  // namespace firkin
