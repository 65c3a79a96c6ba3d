// Text that is read and written: CSV, JSON, sizes, times and rates.
#include "firkin/base/csv.h"

#include "../test.h"
#include "firkin/base/json_text.h"
#include "firkin/base/units.h"

namespace firkin {
namespace {

const CsvColumns kNameAndBytes = {.required = {"name", "bytes"}};

TEST(Csv, ReadsFieldsByColumnNameInAnyOrder) {
  for (const char* text : {"name,bytes\nw1,12\nw2,7\n", "bytes,name\n12,w1\n7,w2\n"}) {
    const CsvTable table = parse_csv(text, "f.csv", kNameAndBytes);
    ASSERT_EQ(table.rows(), 2u);
    EXPECT_EQ(table.text(1, "name"), "w2");
    EXPECT_EQ(table.integer(1, "bytes"), 7);
  }
}

TEST(Csv, SkipsCommentsAndBlankLinesButCountsThem) {
  const CsvTable table = parse_csv("# made by hand\n\nname,bytes\n  \nw1,x\n", "f.csv", kNameAndBytes);
  EXPECT_EQ(error_of([&] { table.integer(0, "bytes"); }), "f.csv:5: bytes is 'x'; expected a whole number");
}

TEST(Csv, AcceptsCrlfByteOrderMarkAndAMissingLastLineBreak) {
  const CsvTable table = parse_csv("\xEF\xBB\xBFname,bytes\r\nw1,12", "f.csv", kNameAndBytes);
  EXPECT_EQ(table.integer(0, "bytes"), 12);
}

TEST(Csv, TrimsPlainFieldsAndKeepsQuotedOnes) {
  const CsvTable table = parse_csv("name,bytes\n \" a,\"\"b\"\" \" ,\t12 \n", "f.csv", kNameAndBytes);
  EXPECT_EQ(table.text(0, "name"), " a,\"b\" ");
  EXPECT_EQ(table.integer(0, "bytes"), 12);
}

TEST(Csv, NumbersAreCorrectlyRounded) {
  const CsvTable table = parse_csv("name,bytes\na,0.1\nb,1e-300\nc,123456789.123456789\n", "f.csv", kNameAndBytes);
  EXPECT_EQ(table.number(0, "bytes"), 0.1);
  EXPECT_EQ(table.number(1, "bytes"), 1e-300);
  EXPECT_EQ(table.number(2, "bytes"), 123456789.123456789);
}

TEST(Csv, RejectsTextInANumber) {
  for (const char* text : {"", "x", "1x", "1 2", "0x10", "1,5", "nan", "inf", "1e999", "--1", "."}) {
    const CsvTable table = parse_csv(std::string("name,bytes\na,\"") + text + "\"\n", "f.csv", kNameAndBytes);
    EXPECT_THAT(error_of([&] { table.number(0, "bytes"); }), StartsWith("f.csv:2: bytes is '")) << text;
  }
}

TEST(Csv, RejectsAnIntegerThatDoesNotFit) {
  const CsvTable table = parse_csv("name,bytes\na,9223372036854775808\n", "f.csv", kNameAndBytes);
  EXPECT_EQ(error_of([&] { table.integer(0, "bytes"); }), "f.csv:2: bytes is '9223372036854775808'; expected a whole number");
}

TEST(Csv, NamesTheLineThatIsNotAsExpected) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "f.csv:1: no header; expected name,bytes"},
      {"# only a comment\n\n", "f.csv:2: no header; expected name,bytes"},
      {"# c\nname\na\n", "f.csv:2: no column 'bytes'; expected name,bytes"},
      {"name,bytes,name\n", "f.csv:1: column 'name' appears twice; expected name,bytes"},
      {"name,bytes,colour\n", "f.csv:1: unknown column 'colour'; expected name,bytes"},
      {"name,bytes\na,1\nb\n", "f.csv:3: 1 fields; expected 2, as in the header"},
      {"name,bytes\na,1,\n", "f.csv:2: 3 fields; expected 2, as in the header"},
      {"name,bytes\n\"a,1\n", "f.csv:2: field 1 is badly quoted"},
      {"name,bytes\n\"a\"b,1\n", "f.csv:2: field 1 is badly quoted"},
      {std::string("name,bytes\na,1\0,2\n", 18), "f.csv:2: a zero byte"},
      {"name,bytes\n" + std::string(kLongestCsvLine + 1, 'a'), "f.csv:2: the line is longer than"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(error_of([&] { parse_csv(text, "f.csv", kNameAndBytes); }), StartsWith(error)) << text.substr(0, 100);
  }
}

TEST(Csv, MayHaveOtherColumnsWhereTheyAreAllowed) {
  const CsvColumns any = {.required = {"name"}, .others_allowed = true};
  EXPECT_TRUE(parse_csv(",name\n0,a\n", "f.csv", any).has("name"));
}

TEST(Csv, ShowsBadTextPrintablyAndShortened) {
  const CsvTable table = parse_csv("name,bytes\na,\x1b[31m" + std::string(100, 'z') + "\n", "f.csv", kNameAndBytes);
  EXPECT_THAT(error_of([&] { table.integer(0, "bytes"); }), AllOf(HasSubstr("'?[31mzzz"), HasSubstr("zzz...'")));
}

TEST(ReadCsv, NamesAFileThatCannotBeRead) {
  EXPECT_THAT(error_of([] { read_csv("no/such.csv", kNameAndBytes); }), StartsWith("no/such.csv: cannot be read: No such file"));
  EXPECT_THAT(error_of([] { read_csv(testing::TempDir(), kNameAndBytes); }), HasSubstr("it is a folder"));
}

TEST(CsvField, IsReadBackAsItWas) {
  for (const std::string name : {"plain", "a,b", "say \"hi\"", " spaces ", "#first", ""}) {
    const CsvTable table = parse_csv("name,bytes\n" + csv_field(name) + ",1\n", "f.csv", kNameAndBytes);
    EXPECT_EQ(table.text(0, "name"), name);
  }
}

TEST(CsvField, RejectsALineBreak) {
  EXPECT_THROW(csv_field("a\nb"), InputError);
}

std::string json_error(const std::string& text) {
  return error_of([&] { parse_json(text, "f.json", "an object"); });
}

TEST(ParseJson, ReadsWhatIsJson) {
  EXPECT_EQ(parse_json("{\"a\": [1, 2.5, null]}", "f.json", "an object").at("a").at(1), 2.5);
}

TEST(ParseJson, NamesTheLineThatIsNoJson) {
  EXPECT_EQ(json_error(""), "f.json:1: not JSON; expected an object");
  EXPECT_EQ(json_error("{\n \"a\": nan\n}"), "f.json:2: not JSON; expected an object");
  EXPECT_EQ(json_error("{\n \"a\": 1\n"), "f.json:3: not JSON; expected an object");
  EXPECT_EQ(json_error("{}\n\n{}"), "f.json:3: not JSON; expected an object");
  EXPECT_EQ(json_error("\n\"\xff\""), "f.json:2: not JSON; expected an object");
}

TEST(ParseJson, RejectsAKeyThatIsThereTwiceAtAnyDepth) {
  EXPECT_EQ(json_error("{\n\"a\": 1,\n\"a\": 2\n}"), "f.json: key 'a' appears twice; expected an object");
  EXPECT_EQ(json_error("[{\"b\": {\"a\": 1,\n\"a\": 2}}]"), "f.json: key 'a' appears twice; expected an object");
  EXPECT_EQ(json_error("[{\"a\": 1}, {\"a\": {\"a\": 1}}]"), "");
}

TEST(ParseJson, RejectsANumberThatDoesNotFit) {
  EXPECT_EQ(json_error("[1,\n 1e999]"), "f.json: a number is too large; expected an object");
}

TEST(ParseJson, RejectsValuesThatAreNestedTooDeeply) {
  EXPECT_EQ(json_error(std::string(kDeepestJson, '[') + std::string(kDeepestJson, ']')), "");
  EXPECT_THAT(json_error("\n" + std::string(kDeepestJson + 1, '[')), HasSubstr("f.json: more than 64 values within each other"));
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

TEST(ParseSize, TakesUnitsOfOneAndTheOtherKind) {
  EXPECT_EQ(parse_size("25MiB", "--cap"), 25 * kMiB);
  EXPECT_EQ(parse_size("25M", "--cap"), 25 * kMiB);
  EXPECT_EQ(parse_size("25MB", "--cap"), 25'000'000);
  EXPECT_EQ(parse_size("64KiB", "--cap"), 64 * kKiB);
  EXPECT_EQ(parse_size("0.5GiB", "--cap"), kGiB / 2);
  EXPECT_EQ(parse_size("4B", "--cap"), 4);
  EXPECT_EQ(parse_size("0.3MiB", "--cap"), 314573);  // to the nearest byte
  EXPECT_EQ(parse_size("4", "--begin", /*takes_bytes=*/true), 4);
}

TEST(ParseSize, RefusesWhatHasNoUnitOrIsNoSize) {
  for (const char* text : {"", "25", "MiB", "-4MiB", "0MiB", "4 MiB", "4mib", "nanMiB", "99999999TiB", "0.1B"}) {
    EXPECT_THAT([text] { parse_size(text, "--cap"); }, ThrowsMessage<InputError>(HasSubstr("expected a size with its unit"))) << text;
  }
  EXPECT_THROW(parse_size("1.5", "--begin", /*takes_bytes=*/true), InputError);
}

TEST(ParseSeconds, TakesATimeWithItsUnit) {
  EXPECT_DOUBLE_EQ(parse_seconds("5m", "--timeout"), 300);
  EXPECT_DOUBLE_EQ(parse_seconds("2h", "--timeout"), 7200);
  EXPECT_DOUBLE_EQ(parse_seconds("500ms", "--timeout"), 0.5);
  EXPECT_DOUBLE_EQ(parse_seconds("20us", "--overhead"), 20e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("90s", "--timeout"), 90);
  EXPECT_DOUBLE_EQ(parse_seconds("0s", "--timeout"), 0);
  for (const char* text : {"", "s", "90", "0", "-1s", "1d", "nan", "1e10s", "2000000000s"}) {
    EXPECT_THAT([text] { parse_seconds(text, "--timeout"); }, ThrowsMessage<InputError>(HasSubstr("expected a time with its unit")))
        << text;
  }
}

TEST(Units, MebibytesAreBinaryAndASizeIsAtLeastAByte) {
  EXPECT_EQ(bytes_from_mib(25, "cap"), 26'214'400);
  EXPECT_EQ(bytes_from_mib(0.05, "cap"), 52429);
  EXPECT_EQ(short_mib(52429), 0.05);
  EXPECT_EQ(short_mib(786'433), 0.750001);
  EXPECT_EQ(short_mib(std::numeric_limits<int64_t>::max()), 0x1p43);
  for (const double mib : {0., 1e13, 1e-7}) EXPECT_THROW(bytes_from_mib(mib, "cap"), InputError);
}

TEST(FormatBytes, CountsIn1024AndWritesThreeDigits) {
  for (const auto& [bytes, text] : std::initializer_list<std::pair<int64_t, const char*>>{
           {0, "0 B"}, {999, "999 B"}, {1000, "0.977 KiB"}, {1024, "1 KiB"}, {26'214'400, "25 MiB"}, {1'610'612'736, "1.5 GiB"}}) {
    EXPECT_EQ(format_bytes(bytes), text);
  }
}

TEST(Counted, HasAPluralUnlessItIsOne) {
  EXPECT_EQ(counted(1, "rank") + ", " + counted(0, "rank") + ", " + counted(2, "rank"), "1 rank, 0 ranks, 2 ranks");
}

TEST(FormatSeconds, WritesThreeDigitsInTheUnitThatFits) {
  EXPECT_EQ(format_seconds(2.34e-5) + ", " + format_seconds(0.0123) + ", " + format_seconds(1.5), "23.4 us, 12.3 ms, 1.5 s");
}

}  // namespace
}  // namespace firkin
