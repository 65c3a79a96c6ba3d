#include "firkin/model/transformer.h"

#include <gtest/gtest.h>

#include "firkin/base/error.h"
#include "firkin/model/named_models.h"

#include <torch/torch.h>

namespace firkin {
namespace {

TransformerConfig small_config(ModelFamily family) {
  return {.family = family,
          .vocab_size = 50,
          .context_length = 16,
          .d_model = 24,
          .d_ff = 40,
          .num_layers = 2,
          .num_heads = 3,
          .tied = family == ModelFamily::kGpt2};
}

class BothFamilies : public testing::TestWithParam<ModelFamily> {};

TEST_P(BothFamilies, LogitsDoNotDependOnLaterTokens) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  at::Tensor tokens = at::randint(50, {2, 10}, at::kLong);
  const at::Tensor before = model->forward(tokens);
  tokens.index_put_({torch::indexing::Slice(), 6}, (tokens.select(1, 6) + 1) % 50);
  const at::Tensor after = model->forward(tokens);
  EXPECT_TRUE(at::equal(before.narrow(1, 0, 6), after.narrow(1, 0, 6)));
  EXPECT_FALSE(at::allclose(before.narrow(1, 6, 4), after.narrow(1, 6, 4)));
}

TEST_P(BothFamilies, LogitsDependOnTheOrderOfEarlierTokens) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::tensor({3, 9, 4, 7}, at::kLong).unsqueeze(0);
  const at::Tensor swapped = at::tensor({9, 3, 4, 7}, at::kLong).unsqueeze(0);
  EXPECT_FALSE(at::allclose(model->forward(tokens).select(1, 3), model->forward(swapped).select(1, 3), 1e-6, 1e-7));
}

TEST_P(BothFamilies, AFreshModelPredictsNearlyUniformly) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::randint(50, {4, 17}, at::kLong);
  const at::Tensor loss = language_model_loss(model->forward(tokens.narrow(1, 0, 16)), tokens.narrow(1, 1, 16));
  EXPECT_NEAR(loss.item<double>(), std::log(50), 0.1);
}

TEST_P(BothFamilies, RunsInBfloat16) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()), at::kBFloat16);
  const at::Tensor tokens = at::randint(50, {2, 9}, at::kLong);
  at::Tensor loss = language_model_loss(model->forward(tokens.narrow(1, 0, 8)), tokens.narrow(1, 1, 8));
  loss.backward();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.grad().scalar_type(), at::kBFloat16);
}

TEST_P(BothFamilies, ASequenceBeyondTheContextIsBadInput) {
  TransformerLM model(small_config(GetParam()));
  EXPECT_THROW(model->forward(at::zeros({1, 17}, at::kLong)), InputError);
}

INSTANTIATE_TEST_SUITE_P(Transformer, BothFamilies, testing::Values(ModelFamily::kCs336, ModelFamily::kGpt2),
                         [](const auto& test) { return std::string(family_name(test.param)); });

TEST(Transformer, ATiedHeadIsTheEmbeddingItself) {
  TransformerLM model(small_config(ModelFamily::kGpt2));
  const size_t tied = model->parameters().size();
  TransformerConfig config = small_config(ModelFamily::kGpt2);
  config.tied = false;
  EXPECT_EQ(TransformerLM(config)->parameters().size(), tied + 1);
}

TEST(Transformer, OnTheMetaDeviceNothingIsAllocated) {
  const TransformerLM model(find_model("xl").config, at::TensorOptions(at::kMeta));  // 7.44 GiB otherwise
  for (const at::Tensor& p : model->parameters()) EXPECT_EQ(p.storage().data(), nullptr);
}

TEST(Transformer, TheSameSeedGivesTheSameModel) {
  const auto first_weight = [] {
    torch::manual_seed(5);
    return TransformerLM(small_config(ModelFamily::kCs336))->parameters()[3];
  };
  EXPECT_TRUE(at::equal(first_weight(), first_weight()));
}

}  // namespace
}  // namespace firkin
