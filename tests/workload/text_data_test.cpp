#include "workload/text_data.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <limits>

#include "firkin/base/error.h"
#include "firkin/base/file.h"
#include "firkin/base/units.h"

#include <torch/torch.h>

namespace firkin {
namespace {

// One file a process: ctest may run these tests side by side.
std::filesystem::path write_text(const std::string& text) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / fmt::format("text_data_test_{}.txt", getpid());
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

TEST(TextData, BytesAbove127AreTokensAbove127) {
  const TextData data(write_text("\xc3\xa9"), 1);
  const TokenBatch batch = data.batch({.local_batch = 1, .sequence_length = 1}, 0, 0);
  EXPECT_EQ(batch.tokens.item<int64_t>(), 0xc3);
  EXPECT_EQ(batch.targets.item<int64_t>(), 0xa9);
}

TEST(TextData, EveryPlaceOfTheTextIsDrawn) {
  const TextData data(write_text("abcdef"), 3);  // windows may start at a, b and c: the last target is f
  const at::Tensor starts = data.batch({.local_batch = 100, .sequence_length = 3}, 4, 0).tokens.select(1, 0);
  EXPECT_EQ(starts.min().item<int64_t>(), 'a');
  EXPECT_EQ(starts.max().item<int64_t>(), 'c');
}

TEST(TextData, AnImpossibleShapeIsBadInput) {
  const TextData data(write_text("the quick brown fox"), 4);
  constexpr BatchShape kValid{.local_batch = 2, .sequence_length = 4, .rank = 1, .world_size = 2};
  EXPECT_NO_THROW(data.batch(kValid, 0, 0));
  const auto expect_rejected = [&](auto change) {
    BatchShape shape = kValid;
    change(shape);
    EXPECT_THROW(data.batch(shape, 0, 0), InputError);
  };
  expect_rejected([](BatchShape& shape) { shape.local_batch = 0; });
  expect_rejected([](BatchShape& shape) { shape.sequence_length = 0; });
  expect_rejected([&](BatchShape& shape) { shape.sequence_length = data.size(); });
  expect_rejected([](BatchShape& shape) { shape.sequence_length = std::numeric_limits<int64_t>::max(); });
  expect_rejected([](BatchShape& shape) { shape.rank = 2; });
  expect_rejected([](BatchShape& shape) { shape.rank = -1; });
  expect_rejected([](BatchShape& shape) { shape.world_size = 0; });
  EXPECT_THROW(data.batch(kValid, 0, -1), InputError);
}

TEST(TextData, AnImpossibleSequenceLengthIsBadInput) {
  const std::filesystem::path file = write_text("abcd");
  EXPECT_THROW(TextData(file, 0), InputError);
  EXPECT_THROW(TextData(file, std::numeric_limits<int64_t>::max()), InputError);
}

TEST(TextData, AMissingFileIsBadInput) {
  EXPECT_THROW(TextData("no_such_text.txt", 4), InputError);
}

TEST(TextData, TheShippedTextIsPlainAndLongEnoughToLearnFrom) {
  const std::string text = read_file(std::filesystem::path(FIRKIN_SOURCE_DIR) / "data" / "text" / "cooperage.txt");
  EXPECT_GE(text.size(), 20 * kKiB);
  for (const char byte : text) ASSERT_TRUE(byte == '\n' || (byte >= ' ' && byte <= '~'));
}

TEST(TextData, ATextThatIsTooShortIsBadInput) {
  EXPECT_THROW(TextData(write_text("abc"), 3), InputError);
  EXPECT_NO_THROW(TextData(write_text("abcd"), 3));
}

}  // namespace
}  // namespace firkin
