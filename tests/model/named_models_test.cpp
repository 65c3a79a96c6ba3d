#include "model/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

struct Expected {
  const char* model;
  int64_t parameters;
  size_t tensors;
};

class NamedModels : public testing::TestWithParam<Expected> {};

TEST_P(NamedModels, HaveTheirKnownSizes) {
  int64_t parameters = 0;
  const std::vector<TensorSpec> specs = tensor_specs(find_model(GetParam().model).config);
  for (const TensorSpec& spec : specs) parameters += spec.numel;
  EXPECT_EQ(parameters, GetParam().parameters);
  EXPECT_EQ(specs.size(), GetParam().tensors);
}

// CS336's xl and GPT-2's sizes are public; the others follow from vocabulary V, width d, inner width f and L blocks:
// CS336 2 V d + d + L (2 d + 4 d^2 + 3 d f), in 3 + 9 L tensors.
constexpr Expected kExpected[] = {
    {"demo", 4951296, 57},          {"small", 128625408, 111},    {"medium", 423183360, 219}, {"large", 969411840, 327},
    {"xl", 1998235200, 435},        {"2.7b", 3406809600, 291},    {"gpt2", 124439808, 148},   {"gpt2-medium", 354823168, 292},
    {"gpt2-large", 774030080, 436}, {"gpt2-xl", 1557611200, 580},
};

INSTANTIATE_TEST_SUITE_P(All, NamedModels, testing::ValuesIn(kExpected), [](const auto& test) {
  std::string name = test.param.model;
  std::erase_if(name, [](char letter) { return letter == '-' || letter == '.'; });
  return name;
});

TEST(NamedModels, AreAllListedAbove) {
  EXPECT_EQ(named_models().size(), std::size(kExpected));
}

TEST(NamedModels, TheLargestSizesThatAConfigurationMayHaveCanBeCounted) {
  constexpr int64_t kLargest = int64_t{1} << 20;
  const TransformerConfig config = {
      .vocab_size = kLargest, .context_length = kLargest, .d_model = kLargest, .d_ff = kLargest, .num_layers = 1, .num_heads = 1};
  for (const TensorSpec& spec : tensor_specs(config)) {
    EXPECT_EQ(spec.numel, spec.name.find("ln") == std::string::npos ? kLargest * kLargest : kLargest) << spec.name;
  }
}

TEST(NamedModels, ABlockOfGpt2LargeHasTheSizeThatWasMeasured) {
  int64_t block = 0;
  for (const TensorSpec& spec : tensor_specs(find_model("gpt2-large").config)) {
    if (spec.name.starts_with("blocks.7.")) block += spec.numel;
  }
  EXPECT_EQ(block, 19677440);
}

TEST(NamedModels, ACs336BlockIsRegisteredNormFirst) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(find_model("demo").config)) {
    if (spec.name.starts_with("blocks.0.")) names.push_back(spec.name.substr(9, spec.name.find('.', 9) - 9));
  }
  EXPECT_THAT(names, testing::ElementsAre("ln1", "q", "k", "v", "o", "ln2", "w1", "w2", "w3"));
}

TEST(NamedModels, AnUnknownNameIsBadInputThatListsTheNames) {
  EXPECT_THAT([] { find_model("huge"); }, testing::ThrowsMessage<InputError>(testing::HasSubstr("xl")));
}

TEST(NamedModels, TheDemosGradientsSpanManyBucketSizes) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : tensor_specs(find_model("demo").config)) bytes += spec.numel * 4;
  EXPECT_GE(bytes, 12 * kMiB);
  EXPECT_LE(bytes, 32 * kMiB);
}

}  // namespace
}  // namespace firkin
