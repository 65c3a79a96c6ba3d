#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "../plan/helpers.h"
#include "import/import.h"

namespace firkin {
namespace {

using testing::HasSubstr;

// The two files for gpt2 (12 blocks of width 768, so 12 x 768^2 + 13 x 768 = 7,087,872 parameters each); blocks take 1 s each, the last
// layer norm 0.5 s, the LM head 2 s.
std::string sizes_text() {
  std::string text = ",Name,No. Params\n0,Token embedding,38597376\n1,Position embedding,786432\n";
  for (int i = 0; i < 12; ++i) text += fmt::format("{},Block {},7087872\n", i + 2, i);
  return text + "14,LayerNorm final,1536\n15,LM head,38597376\n";
}

std::string times_text() {
  std::string text = "Name,min,max,mean,std,median\nbackward,1,1,1,0,1\nforward,1,1,1,0,1\nstep,1,1,1,0,1\n";
  for (int i = 0; i < 12; ++i) text += fmt::format("block_{} grad,9,9,1,0,9\n", i);
  return text + "lm_head grad,9,9,2,0,9\nln_f grad,9,9,0.5,0,9\n";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

Imported parse(const std::string& sizes = sizes_text(), const std::string& times = times_text()) {
  return parse_cmsc828g_profile(sizes, "s.csv", times, "t.csv");
}

std::string profile_error(const std::string& sizes, const std::string& times) {
  return error_of([&] { parse(sizes, times); });
}

size_t index_of(const TensorProfile& profile, const std::string& name) {
  return static_cast<size_t>(std::ranges::find(profile.names, name) - profile.names.begin());
}

TEST(Cmsc828gProfile, HoldsEveryTensorOfGpt2OnceInFloat32) {
  const TensorProfile profile = parse().profile.value();
  EXPECT_EQ(profile.names.size(), 12u * 12 + 4);
  EXPECT_EQ(std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0}), int64_t{4} * 124439808);  // GPT-2's 124 M
  EXPECT_EQ(profile.bytes[index_of(profile, "blocks.3.attn_c_attn.weight")], 4 * 3 * 768 * 768);
  EXPECT_EQ(profile.bytes[index_of(profile, "blocks.3.mlp_c_fc.bias")], 4 * 4 * 768);
}

TEST(Cmsc828gProfile, RunsHeadThenNormThenBlocksFromTheLast) {
  const TensorProfile profile = parse().profile.value();
  EXPECT_EQ(profile.names.front(), "ln_final.bias");
  EXPECT_DOUBLE_EQ(profile.ready_s[0], 2.25);  // half of the norm's bytes
  EXPECT_DOUBLE_EQ(profile.ready_s[1], 2.5);
  EXPECT_EQ(profile.names[2], "blocks.11.mlp_c_proj.bias");
  EXPECT_DOUBLE_EQ(profile.ready_s[2], 2.5 + 768.0 / 7087872);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.11.mlp_c_proj.weight")], 2.5 + (768.0 + 4 * 768 * 768) / 7087872);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.11.ln_1.weight")], 3.5);
  EXPECT_DOUBLE_EQ(profile.ready_s[index_of(profile, "blocks.0.ln_1.weight")], 14.5);
}

TEST(Cmsc828gProfile, CompletesBothEmbeddingsAtTheEnd) {
  const TensorProfile profile = parse().profile.value();
  const size_t last = profile.names.size() - 1;
  EXPECT_EQ(profile.names[last - 1], "position_embeddings.weight");
  EXPECT_EQ(profile.names[last], "token_embeddings.weight");
  EXPECT_DOUBLE_EQ(profile.ready_s[last - 1], 14.5);
  EXPECT_DOUBLE_EQ(profile.ready_s[last], 14.5);
  EXPECT_DOUBLE_EQ(profile.backward_s, 14.5);
}

TEST(Cmsc828gProfile, SaysThatTheTiedWeightIsListedTwiceAndInTheSumOfTheSizes) {
  EXPECT_THAT(parse().notes.front(), HasSubstr("'Token embedding' and 'LM head' (38597376 parameters each) are one tied tensor"));
  EXPECT_EQ(parse().notes.at(1), "the sizes therefore add up to 163037184 parameters, 38597376 more than gpt2 has: 124439808");
}

TEST(Cmsc828gProfile, ReadsThePublishedFiles) {
  const std::filesystem::path data = std::filesystem::path(FIRKIN_SOURCE_DIR) / "data" / "cmsc828g";
  const TensorProfile profile = *import_files({data / "layer-sizes-gpt2_large-bs4.csv", data / "layer-times-gpt2_large-bs4.csv"}).profile;
  EXPECT_EQ(profile.names.size(), 436u);
  EXPECT_EQ(std::accumulate(profile.bytes.begin(), profile.bytes.end(), int64_t{0}), int64_t{4} * 774030080);
  EXPECT_NEAR(profile.backward_s, 0.82947, 1e-5);
  EXPECT_EQ(import_files({data / "allreduce-times.csv"}).table.size(), 19u);
}

TEST(Cmsc828gProfile, RejectsSizesThatAreNotTheModels) {
  EXPECT_EQ(profile_error(replaced(sizes_text(), "Block 3,7087872", "Block 3,7087871"), times_text()),
            "s.csv:7: Block 3 has 7087871 parameters; expected 7087872, as in gpt2");
  EXPECT_EQ(profile_error(replaced(sizes_text(), "Block 3,", "Block 99,"), times_text()), "s.csv:7: 'Block 99' is not part of gpt2");
  EXPECT_EQ(profile_error(replaced(sizes_text(), "Block 3,", "Block 4,"), times_text()), "s.csv:8: 'Block 4' appears twice");
  EXPECT_EQ(profile_error(replaced(sizes_text(), "LM head,", "Head,"), times_text()), "s.csv:17: 'Head' is not part of gpt2");
  EXPECT_THAT(profile_error("", times_text()), HasSubstr("s.csv:1: no header"));
}

TEST(Cmsc828gProfile, RejectsMalformedTimes) {
  EXPECT_EQ(profile_error(sizes_text(), replaced(times_text(), "block_1 grad,9,9,1", "block_1 grad,9,9,-1")),
            "t.csv:6: mean is -1; expected seconds, more than 0");
  EXPECT_THAT(profile_error(sizes_text(), replaced(times_text(), "block_1 grad,9,9,1", "block_1 grad,9,9,nan")), HasSubstr("t.csv:6: "));
  EXPECT_EQ(profile_error(sizes_text(), replaced(times_text(), "ln_f grad", "ln_g grad")),
            "t.csv:18: no 'ln_f grad'; expected its gradient's time");
  EXPECT_EQ(profile_error(sizes_text(), times_text() + "block_12 grad,1,1,1,1,1\n"), "t.csv:19: 'block_12 grad' is not part of gpt2");
}

TEST(Cmsc828gProfile, FindsTheModelByItsBlocks) {
  EXPECT_EQ(parse().model, "gpt2");
  EXPECT_EQ(
      profile_error(replaced(sizes_text(), "5,Block 3,7087872\n", ""), times_text()),
      "s.csv:16: 11 blocks; expected those of gpt2 (12 blocks), gpt2-medium (24 blocks), gpt2-large (36 blocks), gpt2-xl (48 blocks)");
}

}  // namespace
}  // namespace firkin
