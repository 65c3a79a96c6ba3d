#include "firkin/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

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

TEST(CheckPlan, AcceptsATensorSplitIntoConsecutiveParts) {
  EXPECT_NO_THROW(check_plan({.buckets = {{0, 1, 0, 2}, {0, 1, 1, 2}, {1, 2}}, .launch_order = {2, 1, 0}}, 3));
  EXPECT_NO_THROW(check_plan({.buckets = {{0, 2}, {2, 1, 0, 3}, {2, 1, 1, 3}, {2, 1, 2, 3}}}, 3));
  EXPECT_NO_THROW(check_plan({.buckets = {{0, 1, 0, 2}, {0, 1, 1, 2}, {1, 1, 0, 2}, {1, 1, 1, 2}}}, 2));
}

TEST(CheckPlan, RejectsPartsThatAreMissingOutOfOrderOrOfSeveralTensors) {
  const auto error = [](std::vector<Bucket> buckets) { return error_of([&] { check_plan({.buckets = std::move(buckets)}, 2); }); };
  EXPECT_EQ(error({{0, 1, 0, 2}, {1, 1}}), "bucket 1 starts at tensor 1; expected 0");
  EXPECT_EQ(error({{0, 1}, {1, 1, 0, 2}}), "tensor 1 has 1 of its 2 parts; expected all");
  EXPECT_EQ(error({{0, 1, 1, 2}, {0, 1, 0, 2}, {1, 1}}), "bucket 0 is part 1 of 2 of tensor 0; expected part 0 of 2");
  EXPECT_EQ(error({{0, 1, 0, 2}, {0, 1, 1, 3}, {1, 1}}), "bucket 1 is part 1 of 3 of tensor 0; expected part 1 of 2");
  EXPECT_EQ(error({{0, 1, 0, 2}, {0, 2}}), "bucket 1 is part 0 of 1 of tensor 0; expected part 1 of 2");
  EXPECT_EQ(error({{0, 1, 1, 1}, {1, 1}}), "bucket 0 is part 1 of 1 of tensor 0; expected part 0 of 1");
  EXPECT_EQ(error({{0, 2, 0, 2}, {0, 2, 1, 2}}), "bucket 0 is a part of 2 tensors; expected a part of one");
  EXPECT_EQ(error({{0, 2, 0, 0}}), "bucket 0 is one of 0 parts; expected 1 to 65536");
}

TEST(PartBegin, DividesAllElementsAndDoesNotOverflow) {
  EXPECT_EQ(part_begin(10, 0, 3), 0);
  EXPECT_EQ(part_begin(10, 1, 3), 3);
  EXPECT_EQ(part_begin(10, 2, 3), 6);
  EXPECT_EQ(part_begin(10, 3, 3), 10);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(part_begin(most, kMostParts, kMostParts), most);
  EXPECT_EQ(part_begin(most, 1, 2), most / 2);
}

TEST(BucketBytes, DivideASplitTensor) {
  const std::vector<int64_t> sizes = {5, 10};
  EXPECT_THAT(bucket_bytes({.buckets = {{0, 1}, {1, 1, 0, 3}, {1, 1, 1, 3}, {1, 1, 2, 3}}}, sizes), ElementsAre(5, 3, 3, 4));
}

TEST(BucketBytes, AddsUpTheTensorsOfEachBucket) {
  const std::vector<int64_t> sizes = {5, 7, 11, 0};
  EXPECT_THAT(bucket_bytes({.buckets = {{0, 2}, {2, 2}}}, sizes), ElementsAre(12, 11));
}

}  // namespace
}  // namespace firkin
