#include "base/checksum.h"

#include <array>
#include <cstddef>

namespace firkin {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// [0][b]: the checksum's change by the byte b; [k][b]: by b and k zero bytes behind it.
constexpr Tables make_tables() {
  constexpr uint32_t kReversedPolynomial = 0xedb88320;
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][byte] = value;
  }
  for (uint32_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 1; k < tables.size(); ++k) tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  }
  return tables;
}

constexpr Tables kTables = make_tables();

uint32_t byte_at(std::string_view text, size_t place) {
  return static_cast<unsigned char>(text[place]);
}

uint32_t four_bytes_at(std::string_view text, size_t place) {
  return byte_at(text, place) | byte_at(text, place + 1) << 8 | byte_at(text, place + 2) << 16 | byte_at(text, place + 3) << 24;
}

}  // namespace

uint32_t crc32(std::string_view piece, uint32_t before) {
  uint32_t value = ~before;
  size_t at = 0;
  for (; at + 8 <= piece.size(); at += 8) {
    const uint32_t low = four_bytes_at(piece, at) ^ value;
    const uint32_t high = four_bytes_at(piece, at + 4);
    value = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^ kTables[4][low >> 24] ^
            kTables[3][high & 0xff] ^ kTables[2][high >> 8 & 0xff] ^ kTables[1][high >> 16 & 0xff] ^ kTables[0][high >> 24];
  }
  for (; at < piece.size(); ++at) value = (value >> 8) ^ kTables[0][(value ^ byte_at(piece, at)) & 0xff];
  return ~value;
}

}  // namespace firkin
