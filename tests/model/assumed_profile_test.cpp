#include "model/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace firkin {
namespace {

constexpr double kFlops = 156e12;  // half of an A100's peak

TensorProfile profile_of(const char* model, int64_t batch = 8) {
  return assumed_profile(find_model(model).config, {.batch = batch, .sequence = 1024}, kFlops);
}

// 6 operations per parameter and token (Kaplan et al. 2020) and, per layer, 12 x width x sequence of attention; of GPT-2's parameters the
// token embedding computes as the tied head, and positions, norms and biases compute nothing.
TEST(AssumedProfile, AStepTakesSixOperationsPerParameterAndTokenAndAttention) {
  const TensorProfile profile = profile_of("gpt2-xl");
  const double weights = 48 * 12.0 * 1600 * 1600 + 50257.0 * 1600;
  const double expected_s = 8 * 1024 * (6 * weights + 48 * 12.0 * 1600 * 1024) / kFlops;
  EXPECT_NEAR(profile.forward_s + profile.backward_s, expected_s, 1e-9);
  EXPECT_NEAR(profile.backward_s, 2 * profile.forward_s, 1e-9);
  EXPECT_NO_THROW(check_profile(profile));
}

// A cell of the map: studies/worth/results.json, gpt2-xl on A100s. There a bias is ready with its weight too.
TEST(AssumedProfile, IsThatOfTheMap) {
  const TensorProfile profile =
      assumed_profile(find_model("gpt2-xl").config, {.batch = 8, .sequence = 1024}, find_accelerator("a100").reached_flops_per_s());
  EXPECT_NEAR(profile.forward_s, 0.179830952, 1e-8);
  EXPECT_NEAR(profile.backward_s, 0.359661904, 1e-8);
}

TEST(AssumedProfile, TimesFollowTheBatchAndBytesDoNot) {
  const TensorProfile one = profile_of("xl", 1);
  const TensorProfile four = profile_of("xl", 4);
  EXPECT_EQ(one.bytes, four.bytes);
  EXPECT_NEAR(four.backward_s, 4 * one.backward_s, 1e-9);
}

TEST(AssumedProfile, GradientsAreReadyFromTheHeadDownAndATiedOneAtTheEnd) {
  const TensorProfile untied = profile_of("xl");
  EXPECT_EQ(untied.names.front(), "lm_head.weight");
  EXPECT_LT(untied.ready_s.front(), untied.backward_s / 50);
  EXPECT_GT(untied.needed_s.front(), untied.forward_s * 0.9);
  const TensorProfile tied = profile_of("gpt2-large");
  EXPECT_EQ(tied.names.front(), "ln_final.bias");
  EXPECT_EQ(tied.names.back(), "token_embeddings.weight");
  EXPECT_EQ(tied.ready_s.back(), tied.backward_s);
  EXPECT_EQ(tied.needed_s.back(), 0);
}

}  // namespace
}  // namespace firkin
