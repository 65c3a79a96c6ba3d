#include "train/training_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "../base/temporary_folder.h"
#include "firkin/base/error.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string little_endian(const std::vector<int64_t>& values, int bytes) {
  std::string text;
  for (const int64_t value : values) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i));
  }
  return text;
}

std::string with_header(const std::vector<int64_t>& first_words, const std::vector<int64_t>& tokens) {
  std::vector<int64_t> header(256);
  std::ranges::copy(first_words, header.begin());
  return little_endian(header, 4) + little_endian(tokens, 2);
}

class TokenFiles : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) {
    folder_.write(name, content);
    return folder_.path / name;
  }
  static std::vector<int64_t> all(const TokenFile& file) {
    std::vector<int64_t> tokens(static_cast<size_t>(file.size()));
    file.read(0, tokens);
    return tokens;
  }

  TemporaryFolder folder_;
};

TEST_F(TokenFiles, TheBytesOfAnyTextAreItsTokens) {
  const TokenFile file(write("a.txt", "\xc3\xa9\n"));
  EXPECT_TRUE(file.is_text());
  EXPECT_EQ(all(file), (std::vector<int64_t>{0xc3, 0xa9, '\n'}));
}

TEST_F(TokenFiles, ABinHoldsTokensOf16Bits) {
  const TokenFile file(write("a.bin", little_endian({50256, 0, 65535}, 2)));
  EXPECT_FALSE(file.is_text());
  EXPECT_EQ(all(file), (std::vector<int64_t>{50256, 0, 65535}));
}

TEST_F(TokenFiles, TheHeaderOfLlmCIsSkipped) {
  const TokenFile file(write("a.bin", with_header({20240520, 1, 3}, {7, 8, 50256})));
  EXPECT_EQ(all(file), (std::vector<int64_t>{7, 8, 50256}));
}

TEST_F(TokenFiles, WhatCannotBeTokensIsBadInput) {
  const auto expect_rejected = [&](const std::string& content, const char* message) {
    const auto path = write("b.bin", content);
    EXPECT_THAT([&] { TokenFile file(path); }, ThrowsMessage<InputError>(HasSubstr(message)));
  };
  expect_rejected("abc", "3 bytes; expected 16-bit tokens");
  expect_rejected("", "an empty file");
  expect_rejected(with_header({20240520, 2, 1}, {1}), "version 2; expected version 1");
  expect_rejected(with_header({20240520, 1, 9}, {1, 2}), "says 9 tokens; expected 1 to 2");
  EXPECT_THAT([&] { TokenFile file(folder_.path / "none.txt"); }, ThrowsMessage<InputError>(HasSubstr("none.txt: cannot be read")));
  EXPECT_THAT([&] { TokenFile file(folder_.path); }, ThrowsMessage<InputError>(HasSubstr("it is a folder")));
}

TEST_F(TokenFiles, ATokenBeyondTheVocabularyIsNamedWithItsPlace) {
  const TokenFile tokens(write("a.bin", little_endian({5, 300, 6}, 2)));
  EXPECT_NO_THROW(tokens.check_vocabulary(301));
  EXPECT_THAT([&] { tokens.check_vocabulary(300); }, ThrowsMessage<InputError>(HasSubstr("token 300 at place 1; expected")));
  const TokenFile text(write("a.txt", "abc"));
  EXPECT_NO_THROW(text.check_vocabulary(256));
  EXPECT_THROW(text.check_vocabulary(98), InputError);
}

TEST_F(TokenFiles, TheHeldPartIsTheEndOfTheFileAndNoWindowOfTrainingReachesIntoIt) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>(i);
  const auto file = std::make_shared<TokenFile>(write("a.txt", text));
  const TrainingData data = split_data(file, 10, 1, 0.25);
  EXPECT_EQ(data.held_windows, 4);
  const TokenBatch held = held_batch(data, 0, 4);
  EXPECT_EQ(held.tokens.min().item<int64_t>(), data.held_first);
  EXPECT_EQ(held.targets.max().item<int64_t>(), 199);
  const TokenBatch seen = training_batch(data, 0, 1000);
  EXPECT_LT(seen.targets.max().item<int64_t>(), data.held_first);
  EXPECT_TRUE(at::equal(seen.targets, seen.tokens + 1));
  EXPECT_EQ(split_data(file, 10, 1, 0).held_windows, 0);
  EXPECT_THROW(split_data(file, 150, 1, 0.25), InputError);
  EXPECT_THROW(split_data(file, 200, 1, 0), InputError);
}

}  // namespace
}  // namespace firkin
