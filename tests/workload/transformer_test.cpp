#include "workload/transformer.h"

#include <ATen/Functions.h>

#include "../torch.h"
#include "model/transformer_config.h"

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

TEST_P(BothFamilies, SequencesOfABatchDoNotInfluenceEachOther) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::randint(50, {3, 9}, at::kLong);
  EXPECT_TRUE(at::allclose(model->forward(tokens)[1], model->forward(tokens.narrow(0, 1, 1))[0], 1e-5, 1e-6));
}

TEST_P(BothFamilies, EveryParameterGetsAGradient) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::randint(50, {2, 17}, at::kLong);
  language_model_loss(model->forward(tokens.narrow(1, 0, 16)), tokens.narrow(1, 1, 16)).backward();
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_GT(item.value().grad().abs().max().item<double>(), 0) << item.key();
  }
}

TEST_P(BothFamilies, LearnABatchByHeart) {
  torch::manual_seed(0);
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::randint(50, {2, 17}, at::kLong);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  double loss_value = 0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    at::Tensor loss = language_model_loss(model->forward(tokens.narrow(1, 0, 16)), tokens.narrow(1, 1, 16));
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.5);  // a guess costs log(50) = 3.9
}

TEST_P(BothFamilies, CanBeTrainedAfterAPassInInferenceMode) {
  TransformerLM model(small_config(GetParam()));
  const at::Tensor tokens = at::randint(50, {2, 8}, at::kLong);
  {
    const c10::InferenceMode inference;
    model->forward(tokens);
  }
  EXPECT_NO_THROW(model->forward(tokens).sum().backward());
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

TEST_P(BothFamilies, TokensWithoutABatchDimensionAreBadInput) {
  TransformerLM model(small_config(GetParam()));
  EXPECT_THROW(model->forward(at::zeros({8}, at::kLong)), InputError);
}

INSTANTIATE_TEST_SUITE_P(Transformer, BothFamilies, Values(ModelFamily::kCs336, ModelFamily::kGpt2),
                         [](const auto& test) { return std::string(family_name(test.param)); });

TEST(Transformer, ATiedHeadIsTheEmbeddingItself) {
  TransformerLM model(small_config(ModelFamily::kGpt2));
  const size_t tied = model->parameters().size();
  TransformerConfig config = small_config(ModelFamily::kGpt2);
  config.tied = false;
  EXPECT_EQ(TransformerLM(config)->parameters().size(), tied + 1);
}

TEST(Transformer, ATiedEmbeddingsGradientIsTheSumOfItsTwoUses) {
  TransformerConfig config = small_config(ModelFamily::kGpt2);
  TransformerLM tied(config);
  config.tied = false;
  TransformerLM untied(config);
  const auto tied_parameters = tied->named_parameters();
  const auto untied_parameters = untied->named_parameters();
  for (const auto& item : untied_parameters) {
    item.value().detach().copy_(tied_parameters[item.key() == "lm_head.weight" ? "token_embeddings.weight" : item.key()]);
  }
  const at::Tensor tokens = at::randint(50, {2, 16}, at::kLong);
  language_model_loss(tied->forward(tokens), tokens).backward();
  language_model_loss(untied->forward(tokens), tokens).backward();
  const at::Tensor sum = untied_parameters["token_embeddings.weight"].grad() + untied_parameters["lm_head.weight"].grad();
  EXPECT_TRUE(at::allclose(tied_parameters["token_embeddings.weight"].grad(), sum, 1e-4, 1e-7));
}

TEST(Transformer, WeightsThatWriteToTheResidualStreamStartSmaller) {
  torch::manual_seed(0);
  const TransformerLM model(find_model("demo").config);  // 6 layers
  const auto parameters = model->named_parameters();
  EXPECT_NEAR(parameters["blocks.3.w1.weight"].std().item<double>(), 0.02, 0.0005);
  EXPECT_NEAR(parameters["blocks.3.w2.weight"].std().item<double>(), 0.02 / std::sqrt(12), 0.0002);
}

TEST(Transformer, HasTheTensorsThatItsConfigurationLists) {
  for (const ModelFamily family : {ModelFamily::kCs336, ModelFamily::kGpt2}) {
    for (const bool tied : {false, true}) {
      TransformerConfig config = small_config(family);
      config.tied = tied;
      std::vector<std::pair<std::string, int64_t>> listed, registered;
      for (const TensorSpec& spec : tensor_specs(config)) listed.emplace_back(spec.name, spec.numel);
      for (const auto& item : TransformerLM(config)->named_parameters()) registered.emplace_back(item.key(), item.value().numel());
      EXPECT_EQ(listed, registered) << family_name(family) << tied;
    }
  }
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
