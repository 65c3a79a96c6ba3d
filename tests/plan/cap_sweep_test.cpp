#include "firkin/plan/cap_sweep.h"

#include <gtest/gtest.h>

#include "helpers.h"

namespace firkin {
namespace {

TEST(SweepCaps, SimulatesTheBucketsOfEachCap) {
  // Four tensors of 8 bytes, one a second; an all-reduce takes 1 s + 1/8 s per byte.
  const TensorProfile profile = make_profile({8, 8, 8, 8}, {1, 2, 3, 4});
  const std::vector<int64_t> caps = {32, 8, 16};
  const auto points = sweep_caps(profile, linear_costs(1, 0.125), {.rule = CapRule::kAtMost}, caps);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_EQ(points[0].cap_bytes, 32);
  EXPECT_EQ(points[0].buckets, 1);
  EXPECT_DOUBLE_EQ(points[0].backward_s, 4 + 5);
  EXPECT_EQ(points[1].buckets, 4);
  EXPECT_DOUBLE_EQ(points[1].backward_s, 1 + 4 * 2);
  EXPECT_EQ(points[2].buckets, 2);
  EXPECT_DOUBLE_EQ(points[2].backward_s, 2 + 3 + 3);
  EXPECT_DOUBLE_EQ(points[2].exposed_s, 4);
}

}  // namespace
}  // namespace firkin
