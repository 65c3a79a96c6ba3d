#include "firkin/base/units.h"

#include <gmock/gmock.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

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
}

TEST(ParseSeconds, TakesUnitsAndSecondsWithoutOne) {
  EXPECT_DOUBLE_EQ(parse_seconds("5m", "--timeout"), 300);
  EXPECT_DOUBLE_EQ(parse_seconds("2h", "--timeout"), 7200);
  EXPECT_DOUBLE_EQ(parse_seconds("500ms", "--timeout"), 0.5);
  EXPECT_DOUBLE_EQ(parse_seconds("20us", "--overhead"), 20e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("90", "--timeout"), 90);
  for (const char* text : {"", "s", "-1s", "1d", "nan", "1e10", "2000000000"}) {
    EXPECT_THAT([text] { parse_seconds(text, "--timeout"); }, ThrowsMessage<InputError>(HasSubstr("expected a time"))) << text;
  }
}

TEST(Units, MebibytesAreBinaryAndASizeIsAtLeastAByte) {
  EXPECT_EQ(bytes_from_mib(25, "cap"), 26'214'400);
  EXPECT_THROW(bytes_from_mib(0, "cap"), InputError);
  EXPECT_THROW(bytes_from_mib(1e13, "cap"), InputError);
  EXPECT_THROW(bytes_from_mib(1e-7, "cap"), InputError);
}

TEST(FormatBytes, CountsIn1024AndWritesThreeDigits) {
  for (const auto& [bytes, text] : std::initializer_list<std::pair<int64_t, const char*>>{
           {0, "0 B"}, {999, "999 B"}, {1000, "0.977 KiB"}, {1024, "1 KiB"}, {26'214'400, "25 MiB"}, {1'610'612'736, "1.5 GiB"}}) {
    EXPECT_EQ(format_bytes(bytes), text);
  }
}

}  // namespace
}  // namespace firkin
