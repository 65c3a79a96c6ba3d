#include "firkin/plan/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "helpers.h"

namespace firkin {
namespace {

using testing::ElementsAre;

std::vector<int64_t> bytes_of(const std::vector<int64_t>& sizes, const CapOptions& options) {
  return bucket_bytes(assign_buckets(sizes, options), sizes);
}

// Gradient bytes (fp32, in reverse registration order) of the CS336 transformer "xl": vocabulary 10,000, d_model 1600, d_ff 6400, 48
// layers.
std::vector<int64_t> xl_gradients() {
  constexpr int64_t kVocabulary = 10000, kModel = 1600, kHidden = 6400, kLayers = 48;
  std::vector<int64_t> parameters = {kVocabulary * kModel};
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    parameters.insert(parameters.end(), {kModel, kModel * kModel, kModel * kModel, kModel * kModel, kModel * kModel, kModel,
                                         kModel * kHidden, kHidden * kModel, kModel * kHidden});
  }
  parameters.insert(parameters.end(), {kModel, kModel * kVocabulary});
  std::reverse(parameters.begin(), parameters.end());
  for (int64_t& size : parameters) size *= 4;
  return parameters;
}

TEST(AtMost, StartsANewBucketWhenTheNextTensorWouldExceedTheCap) {
  EXPECT_THAT(bytes_of({4, 4, 3, 8, 1}, {.cap_bytes = 8, .rule = CapRule::kAtMost}), ElementsAre(8, 3, 8, 1));
}

TEST(AtMost, GivesATensorLargerThanTheCapItsOwnBucket) {
  EXPECT_THAT(bytes_of({1, 9, 1}, {.cap_bytes = 8, .rule = CapRule::kAtMost}), ElementsAre(1, 9, 1));
}

TEST(AtMost, AppliesTheFirstCapToTheFirstBucketOnly) {
  EXPECT_THAT(bytes_of({2, 2, 2, 2}, {.cap_bytes = 4, .rule = CapRule::kAtMost, .first_cap_bytes = 2}), ElementsAre(2, 4, 2));
}

TEST(CloseWhenFull, AppendsAndThenCloses) {
  EXPECT_THAT(bytes_of({4, 3, 8, 1}, {.cap_bytes = 8, .rule = CapRule::kCloseWhenFull}), ElementsAre(15, 1));
}

TEST(CloseWhenFull, ClosesABucketThatIsExactlyFull) {
  EXPECT_THAT(bytes_of({4, 4, 4}, {.cap_bytes = 8, .rule = CapRule::kCloseWhenFull}), ElementsAre(8, 4));
}

TEST(CloseWhenFull, AppliesTheFirstCapToTheFirstBucketOnly) {
  EXPECT_THAT(bytes_of({2, 2, 2, 2}, {.cap_bytes = 4, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = 1}), ElementsAre(2, 4, 2));
}

// PyTorch reports buckets of 2,052,000, 28,852,224 and 15,853,824 bytes for torchvision's ResNet-18 with its defaults, 25 MiB and 1 MiB.
TEST(CloseWhenFull, ReproducesPyTorchsBucketsOfResNet18) {
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

TEST(AtMost, ReproducesTheBucketCountsOfTheXlTransformer) {
  const std::vector<int64_t> sizes = xl_gradients();
  ASSERT_EQ(sizes.size(), 435u);
  const auto buckets = [&](int64_t mib) {
    return assign_buckets(sizes, {.cap_bytes = mib * kMiB, .rule = CapRule::kAtMost}).buckets.size();
  };
  EXPECT_EQ(buckets(1), 435u);
  EXPECT_EQ(buckets(10), 339u);
  EXPECT_EQ(buckets(100), 98u);
  EXPECT_EQ(buckets(1000), 8u);
}

TEST(AssignBuckets, TensorsOfZeroBytesNeverCloseABucket) {
  EXPECT_THAT(bytes_of({9, 0, 1}, {.cap_bytes = 8, .rule = CapRule::kAtMost}), ElementsAre(9, 1));
  EXPECT_THAT(bytes_of({0, 9, 0}, {.cap_bytes = 8, .rule = CapRule::kAtMost}), ElementsAre(9));
  EXPECT_THAT(bytes_of({0, 8, 0}, {.cap_bytes = 8, .rule = CapRule::kCloseWhenFull}), ElementsAre(8, 0));
}

TEST(AssignBuckets, CoversEveryTensorOnceUnderBothRules) {
  for (const CapRule rule : {CapRule::kAtMost, CapRule::kCloseWhenFull}) {
    EXPECT_NO_THROW(check_plan(assign_buckets(xl_gradients(), {.cap_bytes = 33 * kMiB, .rule = rule}), 435));
  }
}

TEST(AssignBuckets, OfNoTensorsIsNoBucket) {
  EXPECT_TRUE(assign_buckets({}, {}).buckets.empty());
}

TEST(AssignBuckets, RejectsCapsAndSizesThatMakeNoSense) {
  const std::vector<int64_t> sizes = {1, -1};
  EXPECT_EQ(error_of([&] { assign_buckets({}, {.cap_bytes = 0}); }), "the bucket cap is 0 bytes; expected at least 1");
  EXPECT_EQ(error_of([&] { assign_buckets({}, {.first_cap_bytes = -5}); }), "the first bucket's cap is -5 bytes; expected at least 1");
  EXPECT_EQ(error_of([&] { assign_buckets(sizes, {}); }), "gradient 1 has -1 bytes; expected at least 0");
  const std::vector<int64_t> huge = {std::numeric_limits<int64_t>::max(), 1};
  EXPECT_THROW(assign_buckets(huge, {}), InputError);
}

}  // namespace
}  // namespace firkin
