// CRC-32 (ISO-HDLC: that of zip and Ethernet), to tell a damaged file from a whole one.
#pragma once

#include <cstdint>
#include <string_view>

namespace firkin {

// Of what came before, whose checksum is `before`, and `piece` behind it: crc32("b", crc32("a")) == crc32("ab"). Eight bytes at a time
// (Kounavis and Berry 2008, "Novel table lookup-based algorithms for high-performance CRC generation").
uint32_t crc32(std::string_view piece, uint32_t before = 0);

}  // namespace firkin
