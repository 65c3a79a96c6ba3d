#include "firkin/base/file.h"

#include <gtest/gtest.h>

#include <string>

namespace firkin {
namespace {

TEST(Checksum, IsTheCrc32OfTheCatalogues) {
  EXPECT_EQ(crc32("123456789"), 0xcbf43926U);  // the check value of CRC-32/ISO-HDLC
  EXPECT_EQ(crc32(""), 0U);
  EXPECT_EQ(crc32("a"), 0xe8b7be43U);
}

TEST(Checksum, GoesOnWhereAnotherEnded) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += static_cast<char>(i * 37);
  for (size_t cut = 0; cut <= text.size(); ++cut) EXPECT_EQ(crc32(text.substr(cut), crc32(text.substr(0, cut))), crc32(text));
}

TEST(Checksum, EveryBitCounts) {
  const std::string text(40, 'x');
  for (size_t place = 0; place < text.size(); ++place) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = text;
      changed[place] = static_cast<char>(changed[place] ^ 1 << bit);
      EXPECT_NE(crc32(changed), crc32(text));
    }
  }
}

}  // namespace
}  // namespace firkin
