// Weights to and from safetensors files.
#include "train/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "../base/temporary_folder.h"
#include "firkin/base/error.h"
#include "firkin/base/file.h"

#include <torch/torch.h>

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr TransformerConfig kGpt2 = {.family = ModelFamily::kGpt2,
                                     .vocab_size = 20,
                                     .context_length = 8,
                                     .d_model = 12,
                                     .d_ff = 20,
                                     .num_layers = 2,
                                     .num_heads = 2,
                                     .tied = true};

TransformerLM model_of(const TransformerConfig& config, uint64_t seed) {
  torch::manual_seed(seed);
  return TransformerLM(config);
}

void expect_equal(const TransformerLM& a, const TransformerLM& b) {
  for (const auto& item : a->named_parameters()) EXPECT_TRUE(at::equal(item.value(), b->named_parameters()[item.key()])) << item.key();
}

TEST(Safetensors, AFileIsALengthAHeaderAndTheBytes) {
  const TemporaryFolder folder;
  const auto file = folder.path / "a.safetensors";
  write_safetensors(file, {{"b", at::tensor({1.0f, 2.0f})}, {"a", at::tensor({7}, at::kLong)}});
  const std::string text = read_file(file);
  const size_t length = static_cast<unsigned char>(text[0]) + 256U * static_cast<unsigned char>(text[1]);
  EXPECT_EQ(length % 8, 0U);
  EXPECT_EQ(text.size(), 8 + length + 16);
  EXPECT_THAT(text.substr(8, length), HasSubstr(R"("a":{"data_offsets":[0,8],"dtype":"I64","shape":[1]})"));
  EXPECT_THAT(text.substr(8, length), HasSubstr(R"("b":{"data_offsets":[8,16],"dtype":"F32","shape":[2]})"));
  EXPECT_EQ(text.substr(8 + length, 8), std::string("\7\0\0\0\0\0\0\0", 8));
}

TEST(Safetensors, TensorsComeBackInEveryType) {
  const TemporaryFolder folder;
  const auto file = folder.path / "a.safetensors";
  TensorsByName tensors;
  for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
    tensors[c10::toString(type)] = at::arange(6, type).reshape({2, 3}).t();
  }
  tensors["scalar"] = at::full({}, 3.0);
  tensors["empty"] = at::zeros({0, 4});
  write_safetensors(file, tensors);
  const TensorsByName read = read_safetensors(file);
  ASSERT_EQ(read.size(), tensors.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(read.at(name).scalar_type(), tensor.scalar_type());
    EXPECT_TRUE(at::equal(read.at(name), tensor)) << name;
  }
}

TEST(Safetensors, WhatIsNoneIsRefusedByName) {
  const TemporaryFolder folder;
  const auto file = folder.path / "a.safetensors";
  write_safetensors(file, {{"a", at::ones({10})}});
  const std::string whole = read_file(file);
  const auto expect_refused = [&](const std::string& content, const char* why) {
    write_file_atomically(file, content);
    EXPECT_THAT([&] { read_safetensors(file); }, ThrowsMessage<InputError>(testing::AllOf(HasSubstr("a.safetensors"), HasSubstr(why))));
  };
  expect_refused("", "not a safetensors file");
  expect_refused(whole.substr(0, 30), "truncated");
  expect_refused(whole.substr(0, whole.size() - 1), "a: more bytes than there are");
  expect_refused("0123456789", "not a safetensors file");
  std::string other = whole;
  expect_refused(other.replace(other.find("F32"), 3, "Q32"), "dtype Q32");
  other = whole;
  expect_refused(other.replace(other.find("shape"), 5, "shapp"), "a: expected a dtype, a shape");
  expect_refused(std::string("\x02\0\0\0\0\0\0\0[]", 10), "not a safetensors header");
}

TEST(ModelWeights, ComeBackIntoAModelOfEitherFamily) {
  TransformerConfig cs336 = kGpt2;
  cs336.family = ModelFamily::kCs336;
  cs336.tied = false;
  for (const TransformerConfig& config : {kGpt2, cs336}) {
    const TransformerLM written = model_of(config, 1);
    TransformerLM read = model_of(config, 2);
    import_weights(exported_weights(written, config), config, "file", read);
    expect_equal(read, written);
  }
}

TEST(ModelWeights, OfGpt2HaveTheNamesAndLayoutsOfThePublishedCheckpoints) {
  const TransformerLM model = model_of(kGpt2, 1);
  const TensorsByName weights = exported_weights(model, kGpt2);
  EXPECT_EQ(weights.at("wte.weight").sizes(), (std::vector<int64_t>{20, 12}));
  EXPECT_EQ(weights.at("wpe.weight").sizes(), (std::vector<int64_t>{8, 12}));
  EXPECT_EQ(weights.at("h.0.attn.c_attn.weight").sizes(), (std::vector<int64_t>{12, 36}));
  EXPECT_EQ(weights.at("h.1.attn.c_proj.bias").sizes(), (std::vector<int64_t>{12}));
  EXPECT_EQ(weights.at("h.1.mlp.c_fc.weight").sizes(), (std::vector<int64_t>{12, 20}));
  EXPECT_EQ(weights.at("h.1.mlp.c_proj.weight").sizes(), (std::vector<int64_t>{20, 12}));
  EXPECT_TRUE(weights.contains("h.1.ln_2.bias"));
  EXPECT_TRUE(weights.contains("ln_f.weight"));
  EXPECT_EQ(weights.size(), model->named_parameters().size());
}

TEST(ModelWeights, ThePrefixOfThePublishedCheckpointsAndTheirMasksAreTaken) {
  const TransformerLM model = model_of(kGpt2, 1);
  TensorsByName prefixed;
  for (const auto& [name, tensor] : exported_weights(model, kGpt2)) prefixed["transformer." + name] = tensor;
  prefixed["transformer.h.0.attn.bias"] = at::ones({1, 1, 8, 8});
  TransformerLM read = model_of(kGpt2, 2);
  import_weights(prefixed, kGpt2, "file", read);
  expect_equal(read, model);
}

TEST(ModelWeights, AMissingOrMisshapenTensorIsNamed) {
  const TensorsByName weights = exported_weights(model_of(kGpt2, 1), kGpt2);
  TransformerLM model = model_of(kGpt2, 2);
  TensorsByName without = weights;
  without.erase("h.1.ln_2.bias");
  EXPECT_THAT([&] { import_weights(without, kGpt2, "w.safetensors", model); },
              ThrowsMessage<InputError>(HasSubstr("w.safetensors: lacks the model's tensor h.1.ln_2.bias")));
  TensorsByName other = weights;
  other["wpe.weight"] = at::ones({9, 12});
  EXPECT_THAT([&] { import_weights(other, kGpt2, "w.safetensors", model); }, ThrowsMessage<InputError>(HasSubstr("wpe.weight of [9, 12]")));
}

}  // namespace
}  // namespace firkin
