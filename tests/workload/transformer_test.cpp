// What pytorch_test.py, which compares logits and gradients with PyTorch, does not say of models.
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
