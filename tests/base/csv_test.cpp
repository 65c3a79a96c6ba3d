#include "firkin/base/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "firkin/base/error.h"
#include "firkin/base/file.h"

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

TEST(Csv, ReadsFieldsByColumnName) {
  const CsvTable table = parse_csv("name,bytes\nw1,12\nw2,7\n", "f.csv", kNameAndBytes);
  ASSERT_EQ(table.rows(), 2u);
  EXPECT_EQ(table.text(1, "name"), "w2");
  EXPECT_EQ(table.integer(1, "bytes"), 7);
}

TEST(Csv, TakesColumnsInAnyOrder) {
  const CsvTable table = parse_csv("bytes,name\n12,w1\n", "f.csv", kNameAndBytes);
  EXPECT_EQ(table.text(0, "name"), "w1");
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

TEST(Csv, NamesAMissingColumn) {
  EXPECT_EQ(parse_error("# c\nname\na\n"), "f.csv:2: no column 'bytes'; expected name,bytes");
}

TEST(Csv, RejectsARepeatedColumn) {
  EXPECT_EQ(parse_error("name,bytes,name\n"), "f.csv:1: column 'name' appears twice; expected name,bytes");
}

TEST(Csv, RejectsAnUnknownColumnUnlessOthersAreAllowed) {
  EXPECT_EQ(parse_error("name,bytes,colour\n"), "f.csv:1: unknown column 'colour'; expected name,bytes");
  const CsvColumns any = {.required = {"name"}, .others_allowed = true};
  EXPECT_TRUE(parse_csv(",name\n0,a\n", "f.csv", any).has("name"));
}

TEST(Csv, RejectsTooFewAndTooManyFields) {
  EXPECT_EQ(parse_error("name,bytes\na,1\nb\n"), "f.csv:3: 1 fields; expected 2, as in the header");
  EXPECT_EQ(parse_error("name,bytes\na,1,\n"), "f.csv:2: 3 fields; expected 2, as in the header");
}

TEST(Csv, RejectsBadQuoting) {
  EXPECT_THAT(parse_error("name,bytes\n\"a,1\n"), StartsWith("f.csv:2: field 1 is badly quoted"));
  EXPECT_THAT(parse_error("name,bytes\n\"a\"b,1\n"), StartsWith("f.csv:2: field 1 is badly quoted"));
}

TEST(Csv, RejectsAZeroByte) {
  EXPECT_THAT(parse_error(std::string("name,bytes\na,1\0,2\n", 18)), StartsWith("f.csv:2: a zero byte"));
}

TEST(Csv, RejectsAnEmptyFile) {
  EXPECT_EQ(parse_error(""), "f.csv:1: no header; expected name,bytes");
  EXPECT_EQ(parse_error("# only a comment\n\n"), "f.csv:2: no header; expected name,bytes");
}

TEST(Csv, RejectsALineOfMoreThanOneMegabyte) {
  EXPECT_THAT(parse_error("name,bytes\n" + std::string(kLongestCsvLine + 1, 'a')), StartsWith("f.csv:2: the line is longer than"));
}

TEST(Csv, ShowsBadTextPrintablyAndShortened) {
  const CsvTable table = parse_csv("name,bytes\na,\x1b[31m" + std::string(100, 'z') + "\n", "f.csv", kNameAndBytes);
  EXPECT_THAT(error_of([&] { table.integer(0, "bytes"); }), testing::AllOf(HasSubstr("'?[31mzzz"), HasSubstr("zzz...'")));
}

TEST(ReadCsv, ReadsAFile) {
  const auto path = std::filesystem::path(testing::TempDir()) / "csv_test_reads.csv";
  write_file_atomically(path, "name,bytes\nw1,12\n");
  EXPECT_EQ(read_csv(path, kNameAndBytes).integer(0, "bytes"), 12);
}

TEST(ReadCsv, StopsReadingAtALineThatIsTooLong) {
  // A sparse gigabyte without a line break: reading it whole would take a gigabyte of memory.
  const auto path = std::filesystem::path(testing::TempDir()) / "csv_test_long.csv";
  write_file_atomically(path, "name,bytes\n");
  std::filesystem::resize_file(path, uintmax_t{1} << 30);
  EXPECT_THAT(error_of([&] { read_csv(path, kNameAndBytes); }), HasSubstr(":2: the line is longer than 1048576 bytes"));
  std::filesystem::remove(path);
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
