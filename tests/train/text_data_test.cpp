#include "firkin/train/text_data.h"

#include <gtest/gtest.h>

#include <fstream>

#include "firkin/base/error.h"

#include <torch/torch.h>

namespace firkin {
namespace {

std::filesystem::path write_text(const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "firkin_text_data_test.txt";
  std::ofstream(file) << text;
  return file;
}

TEST(TextData, TargetsAreTheNextBytes) {
  const TextData data(write_text("abcdefghijklmnopqrstuvwxyz"), 5);
  const TokenBatch batch = data.batch({.local_batch = 8, .sequence_length = 5}, 1, 0);
  EXPECT_EQ(batch.tokens.sizes(), (std::vector<int64_t>{8, 5}));
  EXPECT_TRUE(at::equal(batch.targets, batch.tokens + 1));
}

TEST(TextData, TheRanksTogetherHaveTheBatchOfOneProcess) {
  const TextData data(write_text("the quick brown fox jumps over the lazy dog"), 6);
  const TokenBatch alone = data.batch({.local_batch = 6, .sequence_length = 6}, 9, 3);
  std::vector<at::Tensor> parts;
  for (int rank = 0; rank < 3; ++rank) {
    parts.push_back(data.batch({.local_batch = 2, .sequence_length = 6, .rank = rank, .world_size = 3}, 9, 3).tokens);
  }
  EXPECT_TRUE(at::equal(at::cat(parts), alone.tokens));
}

TEST(TextData, SeedAndStepDecideTheBatch) {
  const TextData data(write_text("the quick brown fox jumps over the lazy dog"), 6);
  const auto tokens = [&](uint64_t seed, int64_t step) { return data.batch({.local_batch = 9, .sequence_length = 6}, seed, step).tokens; };
  EXPECT_TRUE(at::equal(tokens(1, 1), tokens(1, 1)));
  EXPECT_FALSE(at::equal(tokens(1, 1), tokens(1, 2)));
  EXPECT_FALSE(at::equal(tokens(1, 1), tokens(2, 1)));
}

TEST(TextData, ATextThatIsTooShortIsBadInput) {
  EXPECT_THROW(TextData(write_text("abc"), 3), InputError);
  EXPECT_NO_THROW(TextData(write_text("abcd"), 3));
}

}  // namespace
}  // namespace firkin
