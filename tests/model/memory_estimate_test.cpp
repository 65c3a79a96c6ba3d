#include "model/transformer_config.h"

#include "../test.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

std::string memory_error(const MemoryEstimate& estimate, int local_ranks, int64_t available_bytes) {
  return error_of([&] { check_training_memory(estimate, local_ranks, available_bytes); });
}

TEST(TrainingMemory, CountsTheSecondCopyOfTheGradients) {
  const MemoryEstimate little{.parameters = 100, .gradients = 100, .activations = 30};
  EXPECT_EQ(little.total(), 300);
  const MemoryEstimate much{.parameters = 100, .gradients = 100, .activations = 500};
  EXPECT_EQ(much.total(), 700);
}

TEST(TrainingMemory, OfXlIsThreeTimesItsParameters) {
  const MemoryEstimate xl = estimate_training_memory(find_model("xl").config, 4, 128, 4);
  EXPECT_LT(xl.activations, xl.gradients);
  EXPECT_EQ(xl.total(), 3 * xl.parameters);
  EXPECT_GT(xl.parameters, 7 * kGiB);
}

TEST(TrainingMemory, OfXlOnTwoRanksIsRefusedWhereItDoesNotFit) {
  const MemoryEstimate xl = estimate_training_memory(find_model("xl").config, 4, 128, 4);
  EXPECT_THAT(memory_error(xl, 2, 24 * kGiB), AllOf(HasSubstr("for 2 ranks here; 24 GiB are available"), HasSubstr("fewer ranks")));
  EXPECT_EQ(memory_error(xl, 2, 80 * kGiB), "");
  const MemoryEstimate demo = estimate_training_memory(find_model("demo").config, 4, 128, 4);
  EXPECT_EQ(memory_error(demo, 2, 2 * kGiB), "");
}

TEST(TrainingMemory, IsSharedByTheRanksOfAMachine) {
  const MemoryEstimate estimate{.parameters = kGiB, .gradients = kGiB, .activations = 0};
  const int64_t needed = process_bytes(estimate);
  EXPECT_GT(needed, estimate.total());
  EXPECT_EQ(memory_error(estimate, 1, needed), "");
  EXPECT_EQ(memory_error(estimate, 0, needed), "");  // a launcher that does not say
  EXPECT_NE(memory_error(estimate, 1, needed - 1), "");
  EXPECT_EQ(memory_error(estimate, 2, 2 * needed), "");
  EXPECT_NE(memory_error(estimate, 2, 2 * needed - 2), "");
}

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
