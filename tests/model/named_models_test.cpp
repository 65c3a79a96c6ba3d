#include "firkin/model/named_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "firkin/base/error.h"
#include "firkin/model/model_file.h"
#include "firkin/model/transformer.h"

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
INSTANTIATE_TEST_SUITE_P(All, NamedModels,
                         testing::Values(Expected{"small", 2 * 10000 * 768 + 768 + 12 * (2 * 768 + 4 * 768 * 768 + 3 * 768 * 3072), 111},
                                         Expected{"xl", 1998235200, 435}, Expected{"gpt2", 124439808, 148},
                                         Expected{"gpt2-medium", 354823168, 292}, Expected{"gpt2-large", 774030080, 436},
                                         Expected{"gpt2-xl", 1557611200, 580}),
                         [](const auto& test) {
                           std::string name = test.param.model;
                           std::erase(name, '-');
                           return name;
                         });

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

TEST(ModelFile, StartsFromANamedModel) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "firkin_model_file_test.json";
  std::ofstream(file) << R"({"base": "xl", "num_layers": 4})";
  TransformerConfig expected = find_model("xl").config;
  expected.num_layers = 4;
  EXPECT_EQ(model_from_json_file(file), expected);
  EXPECT_EQ(resolve_model(file.string()), expected);
}

TEST(ModelFile, RejectsWhatItDoesNotUnderstand) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "firkin_bad_model_file_test.json";
  for (const char* text : {"", "[]", "{", R"({"base": "xl", "layers": 4})", R"({"base": "xl", "num_layers": "four"})",
                           R"({"base": "xl", "num_layers": 0})", R"({"base": "xl", "num_layers": -1})", R"({"family": "gpt2"})",
                           R"({"base": "xl", "d_model": 1601})", R"({"base": "xl", "num_layers": 1, "num_layers": 2})"}) {
    SCOPED_TRACE(text);
    std::ofstream(file) << text;
    EXPECT_THROW(model_from_json_file(file), InputError);
  }
  EXPECT_THROW(resolve_model("missing.json"), InputError);
}

}  // namespace
}  // namespace firkin
