// Rotary positions, as the blocks apply them.

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cmath>

#include "workload/transformer.h"

#include <torch/utils.h>

namespace firkin {
namespace {

constexpr double kTheta = 10000;

// Every position of the result holds the same vector, turned by that position.
at::Tensor at_every_position(const at::Tensor& vector, int64_t length) {
  return rotate(vector.expand({length, vector.size(0)}), rotary_angles(length, vector.size(0), kTheta, at::kFloat));
}

TEST(RopeTest, TurnsAPairByItsPositionTimesItsFrequency) {
  // Head dimension 4: frequencies 1 and 10000^(-2/4) = 0.01.
  const at::Tensor turned = at_every_position(at::tensor({1.0F, 0.0F, 0.0F, 2.0F}), 4)[3];
  EXPECT_NEAR(turned[0].item<float>(), std::cos(3.0), 1e-6);
  EXPECT_NEAR(turned[1].item<float>(), std::sin(3.0), 1e-6);
  EXPECT_NEAR(turned[2].item<float>(), -2 * std::sin(0.03), 1e-6);
  EXPECT_NEAR(turned[3].item<float>(), 2 * std::cos(0.03), 1e-6);
}

TEST(RopeTest, LeavesTheFirstPositionAsItIs) {
  torch::manual_seed(1);
  const at::Tensor vector = at::randn({16});
  EXPECT_TRUE(at::equal(at_every_position(vector, 3)[0], vector));
}

TEST(RopeTest, KeepsLengths) {
  torch::manual_seed(1);
  const at::Tensor vector = at::randn({64});
  const at::Tensor lengths = at_every_position(vector, 500).norm(2, -1);
  EXPECT_TRUE(at::allclose(lengths, vector.norm().expand({500}), 1e-5));
}

TEST(RopeTest, ProductsDependOnTheDistanceOfPositionsOnly) {
  torch::manual_seed(1);
  const at::Tensor products = at_every_position(at::randn({16}), 40).matmul(at_every_position(at::randn({16}), 40).t());
  // Moving both positions by 7 changes nothing, although the products themselves vary.
  EXPECT_TRUE(at::allclose(products.slice(0, 0, 33).slice(1, 0, 33), products.slice(0, 7).slice(1, 7), 1e-4, 1e-4));
  EXPECT_GT(products.std().item<double>(), 0.1);
}

TEST(RopeTest, KeepsTheTypeOfItsInput) {
  const RotaryAngles angles = rotary_angles(3, 8, kTheta, at::kFloat);
  EXPECT_EQ(rotate(at::ones({2, 3, 8}, at::kBFloat16), angles).scalar_type(), at::kBFloat16);
}

TEST(RopeTest, FarPositionsAreAsExactAsNearOnes) {
  const RotaryAngles angles = rotary_angles(100'001, 2, kTheta, at::kFloat);
  EXPECT_NEAR(angles.cosines[100'000][0].item<float>(), std::cos(100'000.0), 1e-6);
}

}  // namespace
}  // namespace firkin
