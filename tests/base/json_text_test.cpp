#include "firkin/base/json_text.h"

#include <gmock/gmock.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  try {
    parse_json(text, "f.json", "an object");
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseJson, ReadsWhatIsJson) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2.5, null]}", "f.json", "an object").at("a").at(1), 2.5);
}

TEST(ParseJson, NamesTheLineThatIsNoJson) {
  EXPECT_EQ(parse_error(""), "f.json:1: not JSON; expected an object");
  EXPECT_EQ(parse_error("{\n \"a\": nan\n}"), "f.json:2: not JSON; expected an object");
  EXPECT_EQ(parse_error("{\n \"a\": 1\n"), "f.json:3: not JSON; expected an object");
  EXPECT_EQ(parse_error("{}\n\n{}"), "f.json:3: not JSON; expected an object");
  EXPECT_EQ(parse_error("\n\"\xff\""), "f.json:2: not JSON; expected an object");
}

TEST(ParseJson, RejectsAKeyThatIsThereTwiceAtAnyDepth) {
  EXPECT_EQ(parse_error("{\n\"a\": 1,\n\"a\": 2\n}"), "f.json: key 'a' appears twice; expected an object");
  EXPECT_EQ(parse_error("[{\"b\": {\"a\": 1,\n\"a\": 2}}]"), "f.json: key 'a' appears twice; expected an object");
  EXPECT_EQ(parse_error("[{\"a\": 1}, {\"a\": {\"a\": 1}}]"), "no error");
}

TEST(ParseJson, RejectsANumberThatDoesNotFit) {
  EXPECT_EQ(parse_error("[1,\n 1e999]"), "f.json: a number is too large; expected an object");
}

TEST(ParseJson, RejectsValuesThatAreNestedTooDeeply) {
  EXPECT_EQ(parse_error(std::string(kDeepestJson, '[') + std::string(kDeepestJson, ']')), "no error");
  EXPECT_THAT(parse_error("\n" + std::string(kDeepestJson + 1, '[')), HasSubstr("f.json: more than 64 values within each other"));
}

TEST(DumpJson, ReplacesBytesThatAreNotUtf8) {
  const nlohmann::json json = {{"word",
                                "a\xff"
                                "b\xe2\x82"},
                               {"\xc3", "\xc3\xa9"}};
  EXPECT_THROW(json.dump(), nlohmann::json::exception);
  const nlohmann::json read = parse_json(dump_json(json, 1), "f.json", "an object");
  EXPECT_EQ(read.at("word"), "a\uFFFDb\uFFFD");
  EXPECT_EQ(read.at("\uFFFD"), "\u00E9");
}

TEST(DumpJson, IsTheUsualTextOtherwise) {
  const nlohmann::json json = {{"a", {1, 2.5}}, {"b", "\u00E9"}};
  EXPECT_EQ(dump_json(json), json.dump());
  EXPECT_EQ(dump_json(json, 2), json.dump(2));
}

}  // namespace
}  // namespace firkin
