#include "model/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "firkin/base/error.h"
#include "firkin/base/file.h"

namespace firkin {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

class ModelFileTest : public ::testing::Test {
 protected:
  ~ModelFileTest() override { std::filesystem::remove(path_); }

  TransformerConfig read(const std::string& text) {
    write_file_atomically(path_, text);
    return model_from_json_file(path_);
  }

  // The message is one line and holds `place` (behind the file) and `expected`.
  void expect_rejected(const std::string& text, const std::string& place, const std::string& expected) {
    EXPECT_THAT([&] { read(text); },
                ThrowsMessage<InputError>(AllOf(HasSubstr(path_.string() + place), HasSubstr(expected), Not(HasSubstr("\n")))))
        << text;
  }

  std::filesystem::path path_ = std::filesystem::temp_directory_path() / ("model_file_test_" + std::to_string(getpid()) + ".json");
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

TEST_F(ModelFileTest, NamesAnUnknownKey) {
  expect_rejected("{\"base\": \"xl\",\n\n\"layers\": 4}", ": ", "unknown key 'layers'");
}

TEST_F(ModelFileTest, NamesARepeatedKey) {
  expect_rejected("{\n\"base\": \"xl\", \"base\": \"demo\"}", ": ", "key 'base' appears twice");
}

TEST_F(ModelFileTest, NamesTheLineOfMalformedJson) {
  expect_rejected("{\"base\": \"xl\",\n\"num_layers\": }", ":2", "not JSON; expected an object");
  expect_rejected("", ":1", "not JSON; expected an object");
}

TEST_F(ModelFileTest, RejectsJsonThatIsNotAnObject) {
  expect_rejected("[4]", ": ", "a JSON array; expected an object");
}

TEST_F(ModelFileTest, RejectsValuesOfTheWrongType) {
  expect_rejected(R"({"base": "xl", "num_layers": 4.5})", ": ", "num_layers is 4.5; expected an integer");
  expect_rejected(R"({"base": "xl", "num_layers": "4"})", ": ", "num_layers is \"4\"; expected an integer");
  expect_rejected(R"({"base": "xl", "num_layers": 18446744073709551615})", ": ", "expected an integer");
  expect_rejected(R"({"base": "xl", "tied": 1})", ": ", "tied is 1; expected true or false");
  expect_rejected(R"({"base": "xl", "rope_theta": true})", ": ", "rope_theta is true; expected a number");
  expect_rejected(R"({"base": "xl", "rope_theta": 1e999})", "", "a number is too large");
  expect_rejected(R"({"base": 4})", ": ", "base is 4; expected a string");
}

TEST_F(ModelFileTest, RejectsUnknownNames) {
  expect_rejected("{\n\"base\": \"gpt3\"}", ": ", "unknown model 'gpt3'");
  expect_rejected("{\"base\": \"xl\",\n\"family\": \"llama\"}", ": ", "unknown model family 'llama'");
}

TEST_F(ModelFileTest, WithoutABaseEverySizeIsRequired) {
  expect_rejected(R"({"vocab_size": 256})", "", "no context_length");
}

TEST_F(ModelFileTest, RejectsAnImpossibleConfiguration) {
  expect_rejected(R"({"base": "xl", "num_heads": 7})", "", "expected a multiple of num_heads");
}

TEST_F(ModelFileTest, RejectsAMissingFile) {
  EXPECT_THAT([&] { model_from_json_file(path_); }, ThrowsMessage<InputError>(HasSubstr("cannot be read")));
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
