#include "firkin/plan/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "helpers.h"

namespace firkin {
namespace {

using testing::ElementsAre;

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_tensors_csv(text, "t.csv"); });
}

TEST(TensorsCsv, HoldsNameBytesAndReadyTime) {
  const TensorProfile profile = parse_tensors_csv("name,bytes,ready_s\nhead,400,0.25\nbody,16,0.5\n", "t.csv");
  EXPECT_THAT(profile.names, ElementsAre("head", "body"));
  EXPECT_THAT(profile.bytes, ElementsAre(400, 16));
  EXPECT_THAT(profile.ready_s, ElementsAre(0.25, 0.5));
  EXPECT_EQ(profile.backward_s, 0.5);
}

TEST(TensorsCsv, IsReadBackExactlyAsItWasWritten) {
  TensorProfile profile = make_profile({400, 0, 7}, {0.1, 0.1, 1.0 / 3});
  profile.names[1] = "block, \"0\"";
  const auto path = std::filesystem::path(testing::TempDir()) / "tensor_profile_test.csv";
  write_tensors_csv(path, profile);
  const TensorProfile again = read_tensors_csv(path);
  EXPECT_EQ(again.names, profile.names);
  EXPECT_EQ(again.bytes, profile.bytes);
  EXPECT_EQ(again.ready_s, profile.ready_s);
}

TEST(TensorsCsv, MaySayWhenForwardNeedsATensorAndWhatItsUpdateTakes) {
  const TensorProfile profile =
      parse_tensors_csv("name,bytes,ready_s,needed_s,update_s\nhead,400,0.25,0.125,1e-3\nbody,16,0.5,,0\n", "t.csv");
  EXPECT_THAT(profile.needed_s, ElementsAre(0.125, 0));  // not known: before forward begins
  EXPECT_THAT(profile.update_s, ElementsAre(1e-3, 0));
  EXPECT_EQ(profile.forward_s, 0.125);
  const TensorProfile again = parse_tensors_csv(tensors_csv(profile), "t.csv");
  EXPECT_EQ(again.needed_s, profile.needed_s);
  EXPECT_EQ(again.update_s, profile.update_s);
}

TEST(TensorsCsv, WithoutTheForwardPassKnowsNothingOfIt) {
  const TensorProfile profile = parse_tensors_csv("name,bytes,ready_s\nhead,400,0.25\n", "t.csv");
  EXPECT_FALSE(profile.knows_forward());
  EXPECT_TRUE(profile.update_s.empty());
  EXPECT_EQ(profile.forward_s, 0);
  EXPECT_EQ(tensors_csv(profile), "name,bytes,ready_s\nhead,400,0.25\n");
}

TEST(TensorsCsv, RejectsMalformedLinesByFileAndLine) {
  EXPECT_EQ(parse_error("name,bytes\n"), "t.csv:1: no column 'ready_s'; expected name,bytes,ready_s");
  EXPECT_EQ(parse_error("name,bytes,ready_s\n"), "t.csv:1: no tensors; expected lines of name,bytes,ready_s");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,-1,0\n"), "t.csv:2: bytes is -1; expected at least 0");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,1.5,0\n"), "t.csv:2: bytes is '1.5'; expected a whole number");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,1,nan\n"), "t.csv:2: ready_s is 'nan'; expected a number");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,1,-2\n"), "t.csv:2: ready_s is -2; expected seconds, at least 0");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,1,2\nb,1,1\n"), "t.csv:3: ready_s is 1 after 2; expected gradient-ready order");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,1,2\na,1,2\n"), "t.csv:3: tensor 'a' appears twice");
  EXPECT_EQ(parse_error("name,bytes,ready_s,needed_s\na,1,2,-1\n"), "t.csv:2: needed_s is -1; expected seconds, at least 0");
  EXPECT_EQ(parse_error("name,bytes,ready_s,update_s\na,1,2,\n"), "t.csv:2: update_s is ''; expected a number");
  EXPECT_EQ(parse_error("name,bytes,ready_s\n,1,2\n"), "t.csv:2: the name is empty; expected the tensor's name");
  EXPECT_EQ(parse_error("name,bytes,ready_s\na,9007199254740992,0\nb,1,0\n"), "t.csv:3: the total exceeds 9007199254740992 bytes");
}

TEST(CheckProfile, AcceptsABackwardPassThatEndsAfterTheLastGradient) {
  TensorProfile profile = make_profile({1, 2}, {0, 1});
  profile.backward_s = 1.5;
  EXPECT_NO_THROW(check_profile(profile));
}

TEST(CheckProfile, NamesWhatIsWrong) {
  TensorProfile uneven = make_profile({1, 2}, {0, 1});
  uneven.bytes.pop_back();
  EXPECT_EQ(error_of([&] { check_profile(uneven); }),
            "the profile has 2 names, 1 sizes and 2 ready times; expected the same number of each");
  EXPECT_EQ(error_of([] {
              check_profile(make_profile({1, 2}, {1, 0}));
            }),
            "tensor 't1': ready_s is 0 after 1; expected gradient-ready order");
  TensorProfile early = make_profile({1}, {1});
  early.backward_s = 0.5;
  EXPECT_EQ(error_of([&] { check_profile(early); }), "backward_s is 0.5; expected at least the last ready time, 1");
  TensorProfile short_forward = make_profile({1, 2}, {0, 1});
  short_forward.needed_s = {2, 1};
  short_forward.forward_s = 1.5;
  EXPECT_EQ(error_of([&] { check_profile(short_forward); }), "forward_s is 1.5; expected at least the largest needed_s, 2");
  short_forward.needed_s = {1};
  EXPECT_EQ(error_of([&] { check_profile(short_forward); }), "the profile has 2 names and 1 needed_s; expected as many");
  TensorProfile repeated = make_profile({1, 2}, {0, 1});
  repeated.names[1] = "t0";
  EXPECT_EQ(error_of([&] { check_profile(repeated); }), "tensor 't0' appears twice");
}

}  // namespace
}  // namespace firkin
