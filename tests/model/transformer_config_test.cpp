#include "model/transformer_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr TransformerConfig kValid{.vocab_size = 11, .context_length = 8, .d_model = 12, .d_ff = 20, .num_layers = 2, .num_heads = 3};

// `expected` must be part of the one-line message, which begins with the place given to check_config.
void expect_rejected(const TransformerConfig& config, const char* expected) {
  EXPECT_THAT([&] { check_config(config, "model.json:3"); },
              ThrowsMessage<InputError>(AllOf(StartsWith("model.json:3: "), HasSubstr(expected))));
}

TEST(TransformerConfigTest, AcceptsAValidConfiguration) {
  EXPECT_NO_THROW(check_config(kValid, "here"));
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

TEST(TransformerConfigTest, RejectsSizesWhoseProductsCouldOverflow) {
  TransformerConfig config = kValid;
  config.d_ff = (int64_t{1} << 20) + 1;
  expect_rejected(config, "d_ff is 1048577; expected an integer from 1 to 1048576");
  config = kValid;
  config.num_layers = 10001;
  expect_rejected(config, "num_layers is 10001; expected an integer from 1 to 10000");
}

TEST(TransformerConfigTest, RejectsAWidthThatTheHeadsDoNotDivide) {
  TransformerConfig config = kValid;
  config.num_heads = 5;
  expect_rejected(config, "d_model is 12; expected a multiple of num_heads, which is 5");
}

TEST(TransformerConfigTest, RejectsAnOddHeadDimensionWithRotaryPositionsOnly) {
  TransformerConfig config = kValid;
  config.num_heads = 4;  // heads of 3
  expect_rejected(config, "d_model / num_heads is 3; expected an even number");
  config.family = ModelFamily::kGpt2;
  EXPECT_NO_THROW(check_config(config, "here"));
}

TEST(TransformerConfigTest, RejectsARotaryBaseThatIsNotFiniteOrBelowOne) {
  for (const double theta : {0.5, -10000.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    TransformerConfig config = kValid;
    config.rope_theta = theta;
    expect_rejected(config, "rope_theta is ");
  }
}

TEST(TransformerConfigTest, FamiliesHaveNames) {
  for (const ModelFamily family : {ModelFamily::kCs336, ModelFamily::kGpt2}) {
    EXPECT_EQ(family_from_name(family_name(family), "here"), family);
  }
}

TEST(TransformerConfigTest, AnUnknownFamilyIsAnErrorThatListsTheNames) {
  EXPECT_THAT([] { family_from_name("llama", "model.json:2"); },
              ThrowsMessage<InputError>("model.json:2: unknown model family 'llama'; expected cs336 or gpt2"));
}

}  // namespace
}  // namespace firkin
