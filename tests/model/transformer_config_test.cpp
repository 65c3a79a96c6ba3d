#include "model/transformer_config.h"

#include <tuple>

#include "../base/temporary_folder.h"
#include "../test.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

constexpr TransformerConfig kValid{.vocab_size = 11, .context_length = 8, .d_model = 12, .d_ff = 20, .num_layers = 2, .num_heads = 3};

// `expected` must be part of the one-line message, which begins with the place given to check_config.
void expect_rejected(const TransformerConfig& config, const char* expected) {
  EXPECT_THAT([&] { check_config(config, "model.json:3"); },
              ThrowsMessage<InputError>(AllOf(StartsWith("model.json:3: "), HasSubstr(expected))));
}

TEST(TransformerConfigTest, RejectsEverySizeOfZeroAndBelow) {
  for (const ConfigSize& size : kConfigSizes) {
    for (const int64_t value : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
      TransformerConfig config = kValid;
      config.*size.member = value;
      expect_rejected(config, (std::string(size.name) + " is " + std::to_string(value)).c_str());
    }
  }
}

TEST(TransformerConfigTest, RejectsWhatNoModelCanHave) {
  const auto with = [](auto change) {
    TransformerConfig config = kValid;
    change(config);
    return config;
  };
  expect_rejected(with([](auto& c) { c.d_ff = (int64_t{1} << 20) + 1; }), "d_ff is 1048577; expected an integer from 1 to 1048576");
  expect_rejected(with([](auto& c) { c.num_layers = 10001; }), "num_layers is 10001; expected an integer from 1 to 10000");
  expect_rejected(with([](auto& c) { c.num_heads = 5; }), "d_model is 12; expected a multiple of num_heads, which is 5");
  TransformerConfig odd = with([](auto& c) { c.num_heads = 4; });  // heads of 3
  expect_rejected(odd, "d_model / num_heads is 3; expected an even number");
  odd.family = ModelFamily::kGpt2;  // without rotary positions
  EXPECT_NO_THROW(check_config(odd, "here"));
  for (const double theta : {0.5, -10000.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    expect_rejected(with([theta](auto& c) { c.rope_theta = theta; }), "rope_theta is ");
  }
}

TEST(TransformerConfigTest, FamiliesAreFoundByTheirNames) {
  for (const ModelFamily family : {ModelFamily::kCs336, ModelFamily::kGpt2}) {
    EXPECT_EQ(family_from_name(family_name(family), "here"), family);
  }
  EXPECT_THAT([] { family_from_name("llama", "model.json:2"); },
              ThrowsMessage<InputError>("model.json:2: unknown model family 'llama'; expected cs336 or gpt2"));
}

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

INSTANTIATE_TEST_SUITE_P(All, NamedModels, ValuesIn(kExpected), [](const auto& test) {
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

TEST(NamedModels, ACs336BlockIsRegisteredNormFirst) {
  std::vector<std::string> names;
  for (const TensorSpec& spec : tensor_specs(find_model("demo").config)) {
    if (spec.name.starts_with("blocks.0.")) names.push_back(spec.name.substr(9, spec.name.find('.', 9) - 9));
  }
  EXPECT_THAT(names, ElementsAre("ln1", "q", "k", "v", "o", "ln2", "w1", "w2", "w3"));
}

TEST(NamedModels, AnUnknownNameIsBadInputThatListsTheNames) {
  EXPECT_THAT([] { find_model("huge"); }, ThrowsMessage<InputError>(HasSubstr("xl")));
}

TEST(NamedModels, TheDemosGradientsSpanManyBucketSizes) {
  int64_t bytes = 0;
  for (const TensorSpec& spec : tensor_specs(find_model("demo").config)) bytes += spec.numel * 4;
  EXPECT_GE(bytes, 12 * kMiB);
  EXPECT_LE(bytes, 32 * kMiB);
}

class ModelFileTest : public ::testing::Test {
 protected:
  TransformerConfig read(const std::string& text) {
    write_file_atomically(path_, text);
    return model_from_json_file(path_);
  }

  const TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path / "model.json";
};

TEST_F(ModelFileTest, ReadsACompleteConfiguration) {
  const TransformerConfig expected{.family = ModelFamily::kGpt2,
                                   .vocab_size = 256,
                                   .context_length = 128,
                                   .d_model = 64,
                                   .d_ff = 200,
                                   .num_layers = 2,
                                   .num_heads = 4,
                                   .tied = true,
                                   .rope_theta = 500000};
  EXPECT_EQ(read(R"({"family": "gpt2", "vocab_size": 256, "context_length": 128, "d_model": 64, "d_ff": 200, "num_layers": 2,
                     "num_heads": 4, "tied": true, "rope_theta": 5e5})"),
            expected);
}

TEST_F(ModelFileTest, TakesWhatItDoesNotNameFromItsBase) {
  TransformerConfig expected = find_model("gpt2-large").config;
  expected.num_layers = 4;
  EXPECT_EQ(read(R"({"base": "gpt2-large", "num_layers": 4})"), expected);
}

TEST_F(ModelFileTest, RejectsWhatIsNoModelInOneLineThatSaysWhatWasExpected) {
  const std::tuple<const char*, const char*, const char*> rejected[] = {
      {"{\"base\": \"xl\",\n\n\"layers\": 4}", ": ", "unknown key 'layers'"},
      {"{\n\"base\": \"xl\", \"base\": \"demo\"}", ": ", "key 'base' appears twice"},
      {"{\"base\": \"xl\",\n\"num_layers\": }", ":2", "not JSON; expected an object"},
      {"", ":1", "not JSON; expected an object"},
      {"[4]", ": ", "a JSON array; expected an object"},
      {R"({"base": "xl", "num_layers": 4.5})", ": ", "num_layers is 4.5; expected an integer"},
      {R"({"base": "xl", "num_layers": "4"})", ": ", "num_layers is \"4\"; expected an integer"},
      {R"({"base": "xl", "num_layers": 18446744073709551615})", ": ", "expected an integer"},
      {R"({"base": "xl", "tied": 1})", ": ", "tied is 1; expected true or false"},
      {R"({"base": "xl", "rope_theta": true})", ": ", "rope_theta is true; expected a number"},
      {R"({"base": "xl", "rope_theta": 1e999})", "", "a number is too large"},
      {R"({"base": 4})", ": ", "base is 4; expected a string"},
      {"{\n\"base\": \"gpt3\"}", ": ", "unknown model 'gpt3'"},
      {"{\"base\": \"xl\",\n\"family\": \"llama\"}", ": ", "unknown model family 'llama'"},
      {R"({"vocab_size": 256})", "", "no context_length"},
      {R"({"base": "xl", "num_heads": 7})", "", "expected a multiple of num_heads"},
  };
  for (const auto& [text, place, expected] : rejected) {
    const auto reads = [&, text = text] { read(text); };
    EXPECT_THAT(reads, ThrowsMessage<InputError>(AllOf(HasSubstr(path_.string() + place), HasSubstr(expected), Not(HasSubstr("\n")))))
        << text;
  }
}

TEST_F(ModelFileTest, AModelIsAFileIfItsNameEndsInJsonAndANamedModelOtherwise) {
  EXPECT_EQ(resolve_model("xl"), find_model("xl").config);
  EXPECT_THAT([] { resolve_model("gpt3"); }, ThrowsMessage<InputError>(EndsWith("or a .json file")));
  EXPECT_THAT([] { resolve_model("no_such_model.json"); }, ThrowsMessage<InputError>(HasSubstr("cannot be read")));
  read(R"({"base": "demo", "num_layers": 1})");
  EXPECT_EQ(resolve_model(path_.string()).num_layers, 1);
}

}  // namespace
}  // namespace firkin
