#include "firkin/base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "firkin/base/error.h"

namespace firkin {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(ParseBytes, TakesSuffixesForPowersOf1024) {
  EXPECT_EQ(parse_bytes("4", "-b"), 4);
  EXPECT_EQ(parse_bytes("1K", "-b"), 1024);
  EXPECT_EQ(parse_bytes("64M", "-b"), 64 * kMiB);
  EXPECT_EQ(parse_bytes("1G", "-b"), kGiB);
  EXPECT_EQ(parse_bytes("0.5K", "-b"), 512);
}

TEST(ParseBytes, RefusesEverythingElseAndNamesTheFlag) {
  for (const char* text : {"", "K", "-4", "0", "4.5", "4KB", "4 K", "4k", "nan", "inf", "1e3", "99999999999G", "0x10"}) {
    EXPECT_THAT([text] { parse_bytes(text, "--begin"); }, ThrowsMessage<InputError>(HasSubstr("--begin '"))) << text;
  }
}

TEST(Units, MegabytesAreDecimalAndMebibytesBinary) {
  EXPECT_EQ(bytes_from_mb(25, "--cap-mb"), 25'000'000);
  EXPECT_EQ(bytes_from_mib(25, "--cap-mib"), 26'214'400);
  EXPECT_THROW(bytes_from_mb(0, "--cap-mb"), InputError);
  EXPECT_THROW(bytes_from_mb(1e13, "--cap-mb"), InputError);
  EXPECT_THROW(bytes_from_mb(1e-7, "--cap-mb"), InputError);
}

}  // namespace
}  // namespace firkin
