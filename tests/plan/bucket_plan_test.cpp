#include "firkin/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"

namespace firkin {
namespace {

using testing::ElementsAre;

TEST(CheckPlan, AcceptsBucketsThatCoverEveryTensorInOrder) {
  const BucketPlan plan = {.buckets = {{0, 2}, {2, 1}}, .launch_order = {1, 0}};
  EXPECT_NO_THROW(check_plan(plan, 3));
  EXPECT_NO_THROW(check_plan({}, 0));
}

TEST(CheckPlan, RejectsAGapAnOverlapAndAnEmptyBucket) {
  EXPECT_EQ(error_of([] { check_plan({.buckets = {{0, 1}, {2, 1}}}, 3); }), "bucket 1 starts at tensor 2; expected 1");
  EXPECT_EQ(error_of([] { check_plan({.buckets = {{0, 2}, {1, 2}}}, 3); }), "bucket 1 starts at tensor 1; expected 2");
  EXPECT_EQ(error_of([] { check_plan({.buckets = {{0, 0}}}, 3); }), "bucket 0 holds 0 tensors; expected 1 to 3");
}

TEST(CheckPlan, RejectsTensorsLeftOverAndTensorsThatDoNotExist) {
  EXPECT_EQ(error_of([] { check_plan({.buckets = {{0, 2}}}, 3); }), "the buckets hold 2 tensors; expected 3");
  EXPECT_EQ(error_of([] { check_plan({.buckets = {{0, 4}}}, 3); }), "bucket 0 holds 4 tensors; expected 1 to 3");
}

TEST(CheckPlan, RejectsALaunchOrderThatIsNoPermutation) {
  const std::vector<Bucket> buckets = {{0, 1}, {1, 1}};
  EXPECT_EQ(error_of([&] { check_plan({buckets, {0}}, 2); }), "the launch order names 1 buckets; expected 2");
  EXPECT_EQ(error_of([&] { check_plan({buckets, {0, 0}}, 2); }), "the launch order names bucket 0; expected each of 0 to 1 once");
  EXPECT_EQ(error_of([&] { check_plan({buckets, {0, 2}}, 2); }), "the launch order names bucket 2; expected each of 0 to 1 once");
}

TEST(BucketBytes, AddsUpTheTensorsOfEachBucket) {
  const std::vector<int64_t> sizes = {5, 7, 11, 0};
  EXPECT_THAT(bucket_bytes({.buckets = {{0, 2}, {2, 2}}}, sizes), ElementsAre(12, 11));
}

}  // namespace
}  // namespace firkin
