#include "train/training_data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "firkin/base/error.h"

namespace firkin {
namespace {

std::vector<int64_t> starts_of_pass(const SampleOrder& order, int64_t pass) {
  const int64_t windows = windows_per_pass(order);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < windows; ++i) starts.push_back(window_start(order, pass * windows + i));
  return starts;
}

TEST(SampleOrder, AWindowComesOncePerPassAndOverlapsNoOther) {
  for (const int64_t tokens : {12, 100, 1000, 1027, 4097}) {
    const SampleOrder order{.first = 50, .tokens = tokens, .sequence = 7, .seed = 3};
    for (int64_t pass = 0; pass < 3; ++pass) {
      std::vector<int64_t> starts = starts_of_pass(order, pass);
      std::ranges::sort(starts);
      EXPECT_GE(starts.front(), 50);
      EXPECT_LE(starts.back() + 7, 50 + tokens - 1);  // the last target lies in the part
      for (size_t i = 1; i < starts.size(); ++i) EXPECT_EQ(starts[i] - starts[i - 1], 7);
    }
  }
}

TEST(SampleOrder, PassesAndSeedsHaveOrdersOfTheirOwn) {
  const SampleOrder order{.tokens = 1000, .sequence = 9, .seed = 1};
  EXPECT_EQ(starts_of_pass(order, 0), starts_of_pass(order, 0));
  EXPECT_NE(starts_of_pass(order, 0), starts_of_pass(order, 1));
  SampleOrder other = order;
  other.seed = 2;
  EXPECT_NE(starts_of_pass(order, 0), starts_of_pass(other, 0));
}

TEST(SampleOrder, TheOrderIsNotThatOfTheFile) {
  const std::vector<int64_t> starts = starts_of_pass({.tokens = 10001, .sequence = 10, .seed = 0}, 0);
  int neighbours = 0;
  double moved = 0;
  for (size_t i = 1; i < starts.size(); ++i) {
    neighbours += std::abs(starts[i] - starts[i - 1]) == 10;
    moved += static_cast<double>(std::abs(starts[i] - starts[i - 1]));
  }
  EXPECT_LT(neighbours, 20);                              // of 999; about two are expected
  EXPECT_NEAR(moved / 999.0, 10000.0 / 3, 10000.0 / 20);  // the mean distance of two places drawn at random
}

TEST(SampleOrder, APartOfOneWindowHasOneSample) {
  const SampleOrder order{.tokens = 8, .sequence = 7, .seed = 5};
  EXPECT_EQ(windows_per_pass(order), 1);
  EXPECT_EQ(window_start(order, 0), 0);
  EXPECT_EQ(window_start(order, 12), 0);
}

TEST(SampleOrder, APartWithoutAWindowIsBadInput) {
  EXPECT_THROW(windows_per_pass({.tokens = 7, .sequence = 7}), InputError);
  EXPECT_THROW(windows_per_pass({.tokens = 7, .sequence = 0}), InputError);
}

}  // namespace
}  // namespace firkin
