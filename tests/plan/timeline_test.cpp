#include "firkin/plan/timeline.h"

#include <gtest/gtest.h>

#include "firkin/plan/bucket_plan.h"
#include "helpers.h"

namespace firkin {
namespace {

BucketPlan plan_of(std::vector<Bucket> buckets, std::vector<int64_t> launch_order = {}) {
  return {.buckets = std::move(buckets), .launch_order = std::move(launch_order)};
}

// All-reduce of x bytes: 1 s + x / 8 s on an idle link.
const CommCosts kCosts = linear_costs(1, 0.125);

TEST(Simulate, AnIdleLinkTakesABucketWhenItIsReady) {
  // Ready at 1 and 6; 8 bytes take 2 s each: the first is over long before the second is ready.
  const Timeline timeline = simulate(make_profile({8, 8}, {1, 6}), plan_of({{0, 1}, {1, 1}}), kCosts);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].ready_s, 1);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].start_s, 1);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].end_s, 3);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].start_s, 6);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].end_s, 8);
  EXPECT_DOUBLE_EQ(timeline.compute_end_s, 6);
  EXPECT_DOUBLE_EQ(timeline.end_s, 8);
  EXPECT_DOUBLE_EQ(timeline.exposed_s, 2);
}

TEST(Simulate, ABusyLinkTakesBucketsOneAfterAnother) {
  const Timeline timeline = simulate(make_profile({8, 8}, {1, 2}), plan_of({{0, 1}, {1, 1}}), kCosts);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].ready_s, 2);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].start_s, 3);
  EXPECT_DOUBLE_EQ(timeline.end_s, 5);
}

TEST(Simulate, ABucketIsReadyWithItsLastTensor) {
  const Timeline timeline = simulate(make_profile({8, 16}, {1, 2}), plan_of({{0, 2}}), kCosts);
  EXPECT_EQ(timeline.buckets[0].bytes, 24);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].ready_s, 2);
  EXPECT_DOUBLE_EQ(timeline.end_s, 6);
}

TEST(Simulate, QueuedBucketsAreAGapApart) {
  // a = 2 s, g = 0.5 s at 8 bytes. Ends: 0 + 2; max(0.1 + 2, 2 + 0.5) = 2.5; max(0.2 + 2, 2.5 + 0.5) = 3.
  const CommCosts costs = {linear_curve(1, 0.125), linear_curve(0.25, 0.03125)};
  const Timeline timeline = simulate(make_profile({8, 8, 8}, {0, 0.1, 0.2}), plan_of({{0, 1}, {1, 1}, {2, 1}}), costs);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].end_s, 2);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].end_s, 2.5);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].end_s, 3);
}

TEST(Simulate, ABucketIsNeverFasterThanOnAnIdleLink) {
  // The second bucket is ready at 2.3 when the first has just ended: 2.3 + 2, not 2 + 0.5.
  const CommCosts costs = {linear_curve(1, 0.125), linear_curve(0.25, 0.03125)};
  const Timeline timeline = simulate(make_profile({8, 8}, {0, 2.3}), plan_of({{0, 1}, {1, 1}}), costs);
  EXPECT_DOUBLE_EQ(timeline.end_s, 4.3);
}

TEST(Simulate, CommunicationThatBackwardHidesIsNotExposed) {
  TensorProfile profile = make_profile({8}, {1});
  profile.backward_s = 5;
  const Timeline timeline = simulate(profile, plan_of({{0, 1}}), kCosts);
  EXPECT_DOUBLE_EQ(timeline.end_s, 5);
  EXPECT_DOUBLE_EQ(timeline.exposed_s, 0);
}

TEST(Simulate, ABucketThatIsNotReadyHoldsUpThoseLaunchedAfterIt) {
  // Launch order 1, 0: bucket 1 is ready at 4 and takes 2 s; bucket 0, ready at 1, waits for it and ends at 8.
  const Timeline timeline = simulate(make_profile({8, 8}, {1, 4}), plan_of({{0, 1}, {1, 1}}, {1, 0}), kCosts);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].ready_s, 4);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].end_s, 6);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].ready_s, 1);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].start_s, 6);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].end_s, 8);
}

TEST(Simulate, ThePartsOfASplitTensorAreReadyTogetherAndTravelOneByOne) {
  // 16 bytes ready at 1 as two parts of 8: 2 s each; the second tensor, ready at 2, goes between them.
  const BucketPlan plan = plan_of({{0, 1, 0, 2}, {0, 1, 1, 2}, {1, 1}}, {0, 2, 1});
  const Timeline timeline = simulate(make_profile({16, 8}, {1, 2}), plan, kCosts);
  EXPECT_EQ(timeline.buckets[0].bytes, 8);
  EXPECT_DOUBLE_EQ(timeline.buckets[0].end_s, 3);
  EXPECT_EQ(timeline.buckets[1].bucket, 2);
  EXPECT_DOUBLE_EQ(timeline.buckets[1].end_s, 5);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].ready_s, 1);
  EXPECT_DOUBLE_EQ(timeline.buckets[2].end_s, 7);
}

TEST(Simulate, WithoutTensorsThereIsOnlyBackward) {
  TensorProfile profile;
  profile.backward_s = 3;
  EXPECT_DOUBLE_EQ(simulate(profile, {}, kCosts).end_s, 3);
}

}  // namespace
}  // namespace firkin
