#include "firkin/base/csv.h"

#include <gmock/gmock.h>

#include <string>

#include "firkin/base/error.h"
#include "temporary_folder.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const CsvColumns kNameAndBytes = {.required = {"name", "bytes"}};

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(const std::string& text) {
  return error_of([&] { parse_csv(text, "f.csv", kNameAndBytes); });
}

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
  for (const auto& [text, error] : cases) EXPECT_THAT(parse_error(text), StartsWith(error)) << text.substr(0, 100);
}

TEST(Csv, MayHaveOtherColumnsWhereTheyAreAllowed) {
  const CsvColumns any = {.required = {"name"}, .others_allowed = true};
  EXPECT_TRUE(parse_csv(",name\n0,a\n", "f.csv", any).has("name"));
}

TEST(Csv, ShowsBadTextPrintablyAndShortened) {
  const CsvTable table = parse_csv("name,bytes\na,\x1b[31m" + std::string(100, 'z') + "\n", "f.csv", kNameAndBytes);
  EXPECT_THAT(error_of([&] { table.integer(0, "bytes"); }), testing::AllOf(HasSubstr("'?[31mzzz"), HasSubstr("zzz...'")));
}

TEST(ReadCsv, ReadsAFile) {
  const TemporaryFolder folder;
  folder.write("a.csv", "name,bytes\nw1,12\n");
  EXPECT_EQ(read_csv(folder.path / "a.csv", kNameAndBytes).integer(0, "bytes"), 12);
}

TEST(ReadCsv, StopsReadingAtALineThatIsTooLong) {
  // A sparse gigabyte without a line break: reading it whole would take a gigabyte of memory.
  const TemporaryFolder folder;
  folder.write("a.csv", "name,bytes\n");
  std::filesystem::resize_file(folder.path / "a.csv", uintmax_t{1} << 30);
  EXPECT_THAT(error_of([&] { read_csv(folder.path / "a.csv", kNameAndBytes); }), HasSubstr(":2: the line is longer than 1048576 bytes"));
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

}  // namespace
}  // namespace firkin
