#include "firkin/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "helpers.h"
#include "random_instance.h"

namespace firkin {
namespace {

using testing::ElementsAre;

// The three answers of torch.distributed._compute_bucket_assignment_by_size (PyTorch 2.13) to the same sizes and limits.
TEST(CapList, AgreesWithPyTorch) {
  const std::vector<int64_t> sizes = {12, 12, 20, 8, 8, 8, 36};
  const std::vector<int64_t> falling = {12, 32, 8}, one = {12}, rising = {12, 8, 1000000};
  EXPECT_THAT(counts(assign_buckets_by_cap_list(sizes, falling)), ElementsAre(1, 2, 1, 1, 1, 1));
  EXPECT_THAT(counts(assign_buckets_by_cap_list(sizes, one)), ElementsAre(1, 1, 1, 2, 2));
  EXPECT_THAT(counts(assign_buckets_by_cap_list(sizes, rising)), ElementsAre(1, 1, 5));
}

TEST(CapList, RejectsListsThatAreNoCaps) {
  const std::vector<int64_t> sizes = {1}, none = {}, negative = {-1};
  EXPECT_EQ(error_of([&] { assign_buckets_by_cap_list(sizes, none); }), "the list of bucket caps is empty; expected at least one");
  EXPECT_EQ(error_of([&] { assign_buckets_by_cap_list(sizes, negative); }), "a bucket cap is -1 bytes; expected at least 0");
}

TEST(PyTorchCaps, AreTheBucketsInMib) {
  const std::vector<int64_t> sizes = {1 << 20, 1 << 19, 3 << 20};
  const PyTorchCaps caps = pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, sizes);
  EXPECT_THAT(caps.mib, ElementsAre(1.5, 3));
  EXPECT_TRUE(caps.reproduces_plan);
}

TEST(PyTorchCaps, AreRoundWhereTheLastTensorLeavesAChoice) {
  const std::vector<int64_t> sizes = {50'000'000, 50'000'003};
  const PyTorchCaps caps = pytorch_caps({.buckets = {{0, 2}}}, sizes);
  EXPECT_THAT(caps.mib, ElementsAre(92));  // of 95.4 MiB
  EXPECT_TRUE(caps.reproduces_plan);
}

TEST(PyTorchCaps, AreNotReachedBeforeTheLastTensorHoweverRoundThatWere) {
  const std::vector<int64_t> sizes = {1 << 20, 1, 8};  // the first tensor alone is 1 MiB
  EXPECT_TRUE(pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, sizes).reproduces_plan);
}

TEST(PyTorchCaps, ReproduceEveryPlanOfNonEmptyTensors) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomInstance random(seed);
    std::vector<int64_t> sizes;
    for (int64_t i = random.integer(1, 40); i > 0; --i) sizes.push_back(random.integer(1, 100000000));
    EXPECT_TRUE(pytorch_caps(random.plan(static_cast<int64_t>(sizes.size())), sizes).reproduces_plan) << "seed " << seed;
  }
}

TEST(PyTorchCaps, CannotSplitATensor) {
  const std::vector<int64_t> sizes = {8};
  EXPECT_EQ(error_of([&] {
              pytorch_caps({.buckets = {{0, 1, 0, 2}, {0, 1, 1, 2}}}, sizes);
            }),
            "the plan splits a tensor; expected whole tensors: PyTorch's caps cannot split one");
}

TEST(PyTorchCaps, SayWhenTensorsOfZeroBytesPreventIt) {
  const std::vector<int64_t> sizes = {8, 0, 8};
  EXPECT_FALSE(pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, sizes).reproduces_plan);
}

}  // namespace
}  // namespace firkin
