// Which tensors travel together, and in which order.
#include "firkin/plan/bucket_plan.h"

#include "../test.h"
#include "helpers.h"

namespace firkin {
namespace {

TEST(CheckPlan, AcceptsBucketsThatCoverEveryTensorInOrder) {
  EXPECT_NO_THROW(check_plan({}, 0));
  EXPECT_NO_THROW(check_plan({.buckets = {{0, 2}, {2, 1}}, .launch_order = {1, 0}}, 3));
}

TEST(CheckPlan, NamesWhatIsWrong) {
  const std::pair<BucketPlan, const char*> of_three_tensors[] = {
      {{{{0, 1}, {2, 1}}, {}}, "bucket 1 starts at tensor 2; expected 1"},
      {{{{0, 2}, {1, 2}}, {}}, "bucket 1 starts at tensor 1; expected 2"},
      {{{{0, 0}}, {}}, "bucket 0 holds 0 tensors; expected 1 to 3"},
      {{{{0, 2}}, {}}, "the buckets hold 2 tensors; expected 3"},
      {{{{0, 4}}, {}}, "bucket 0 holds 4 tensors; expected 1 to 3"},
      {{{{0, 1}, {1, 2}}, {0}}, "the launch order names 1 buckets; expected 2"},
      {{{{0, 1}, {1, 2}}, {0, 0}}, "the launch order names bucket 0; expected each of 0 to 1 once"},
      {{{{0, 1}, {1, 2}}, {0, 2}}, "the launch order names bucket 2; expected each of 0 to 1 once"},
  };
  for (const auto& [plan, error] : of_three_tensors) EXPECT_EQ(error_of([&, &plan = plan] { check_plan(plan, 3); }), error);
}

TEST(BucketBytes, AddUpTensors) {
  const std::vector<int64_t> sizes = {5, 10, 7, 0};
  EXPECT_THAT(bucket_bytes({.buckets = {{0, 1}, {1, 1}, {2, 2}}}, sizes), ElementsAre(5, 10, 7));
}

std::vector<int64_t> bytes_of(const std::vector<int64_t>& sizes, const CapOptions& options) {
  return bucket_bytes(assign_buckets(sizes, options), sizes);
}

constexpr CapRule kAtMost = CapRule::kAtMost, kCloseWhenFull = CapRule::kCloseWhenFull;

struct Assignment {
  const char* what;
  std::vector<int64_t> sizes;
  CapOptions options;
  std::vector<int64_t> bytes;  // of the buckets
};

TEST(AssignBuckets, FollowsBothRules) {
  const Assignment cases[] = {
      {"starts a bucket when the next tensor would exceed the cap", {4, 4, 3, 8, 1}, {.cap_bytes = 8, .rule = kAtMost}, {8, 3, 8, 1}},
      {"a tensor larger than the cap has its own", {1, 9, 1}, {.cap_bytes = 8, .rule = kAtMost}, {1, 9, 1}},
      {"first cap", {2, 2, 2, 2}, {.cap_bytes = 4, .rule = kAtMost, .first_cap_bytes = 2}, {2, 4, 2}},
      {"zero bytes close none", {9, 0, 1}, {.cap_bytes = 8, .rule = kAtMost}, {9, 1}},
      {"zero bytes close none", {0, 9, 0}, {.cap_bytes = 8, .rule = kAtMost}, {9}},
      {"appends and then closes", {4, 3, 8, 1}, {.cap_bytes = 8, .rule = kCloseWhenFull}, {15, 1}},
      {"closes one that is exactly full", {4, 4, 4}, {.cap_bytes = 8, .rule = kCloseWhenFull}, {8, 4}},
      {"first cap", {2, 2, 2, 2}, {.cap_bytes = 4, .rule = kCloseWhenFull, .first_cap_bytes = 1}, {2, 4, 2}},
      {"zero bytes close none", {0, 8, 0}, {.cap_bytes = 8, .rule = kCloseWhenFull}, {8, 0}},
      {"no tensors", {}, {}, {}},
  };
  for (const auto& [what, sizes, options, bytes] : cases) EXPECT_EQ(bytes_of(sizes, options), bytes) << what;
}

// PyTorch reports buckets of 2,052,000, 28,852,224 and 15,853,824 bytes for torchvision's ResNet-18 with its defaults, 25 MiB and 1 MiB.
TEST(AssignBuckets, ReproducesPyTorchsBucketsOfResNet18) {
  std::vector<int64_t> parameters = {64 * 3 * 7 * 7, 64, 64};  // stem: convolution, batch norm
  const int64_t widths[] = {64, 64, 128, 256, 512};
  for (int stage = 1; stage <= 4; ++stage) {
    for (int block = 0; block < 2; ++block) {
      const int64_t in = widths[block == 0 ? stage - 1 : stage];
      const int64_t out = widths[stage];
      parameters.insert(parameters.end(), {out * in * 9, out, out, out * out * 9, out, out});
      if (in != out) parameters.insert(parameters.end(), {out * in, out, out});  // the shortcut's projection
    }
  }
  parameters.insert(parameters.end(), {1000 * 512, 1000});  // classifier: weight, bias
  std::reverse(parameters.begin(), parameters.end());
  for (int64_t& size : parameters) size *= 4;
  EXPECT_THAT(bytes_of(parameters, {.cap_bytes = 25 * kMiB, .first_cap_bytes = 1 * kMiB}), ElementsAre(2052000, 28852224, 15853824));
}

TEST(AssignBuckets, RejectsCapsAndSizesThatMakeNoSense) {
  const std::vector<int64_t> sizes = {1, -1};
  EXPECT_EQ(error_of([&] { assign_buckets({}, {.cap_bytes = 0}); }), "the bucket cap is 0 bytes; expected at least 1");
  EXPECT_EQ(error_of([&] { assign_buckets({}, {.first_cap_bytes = -5}); }), "the first bucket's cap is -5 bytes; expected at least 1");
  EXPECT_EQ(error_of([&] { assign_buckets(sizes, {}); }), "gradient 1 has -1 bytes; expected at least 0");
  const std::vector<int64_t> huge = {std::numeric_limits<int64_t>::max(), 1};
  EXPECT_THROW(assign_buckets(huge, {}), InputError);
}

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

TEST(PyTorchCaps, AreTheBucketsInMibAndRoundWhereTheLastTensorLeavesAChoice) {
  const std::vector<int64_t> sizes = {1 << 20, 1 << 19, 3 << 20}, large = {50'000'000, 50'000'003};
  EXPECT_THAT(pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, sizes).bucket_cap_mb_list, ElementsAre(1.5, 3));
  EXPECT_THAT(pytorch_caps({.buckets = {{0, 2}}}, large).bucket_cap_mb_list, ElementsAre(92));  // of 95.4 MiB
  // Not reached before the last tensor, however round that were: here the first tensor alone is 1 MiB. Zero bytes prevent it.
  const std::vector<int64_t> early = {1 << 20, 1, 8}, empty = {8, 0, 8};
  EXPECT_TRUE(pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, early).reproduces_plan);
  EXPECT_FALSE(pytorch_caps({.buckets = {{0, 2}, {2, 1}}}, empty).reproduces_plan);
}

TEST(PyTorchCaps, ReproduceEveryPlanOfNonEmptyTensors) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomInstance random(seed);
    std::vector<int64_t> sizes;
    for (int64_t i = random.integer(1, 40); i > 0; --i) sizes.push_back(random.integer(1, 100000000));
    EXPECT_TRUE(pytorch_caps(random.plan(static_cast<int64_t>(sizes.size())), sizes).reproduces_plan) << "seed " << seed;
  }
}

}  // namespace
}  // namespace firkin
