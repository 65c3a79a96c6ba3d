#include "firkin/base/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>

#include "firkin/base/error.h"

namespace firkin {

namespace {

int64_t bytes_from(double number, double unit_bytes, const char* unit, const std::string& what) {
  constexpr double kLargestBytes = 0x1p63;  // what fits in int64_t
  if (!(number > 0) || number * unit_bytes >= kLargestBytes) {
    throw InputError(fmt::format("{}: {} is not a size; expected {}, a positive number such as 25 or 0.5", what, number, unit));
  }
  const int64_t bytes = std::llround(number * unit_bytes);
  if (bytes == 0) throw InputError(fmt::format("{}: {} {} is less than one byte", what, number, unit));
  return bytes;
}

}  // namespace

int64_t bytes_from_mib(double mib, const std::string& what) {
  return bytes_from(mib, static_cast<double>(kMiB), "MiB", what);
}

int64_t bytes_from_mb(double mb, const std::string& what) {
  return bytes_from(mb, 1e6, "MB", what);
}

int64_t parse_bytes(const std::string& text, const std::string& what) {
  const char* end = text.data() + text.size();
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  int64_t unit = 1;
  if (end - rest == 1) unit = *rest == 'K' ? kKiB : *rest == 'M' ? kMiB : *rest == 'G' ? kGiB : 0;
  const double bytes = number * static_cast<double>(unit);
  constexpr double kLimit = 9007199254740992.0;  // 2^53: whole numbers below it are exact
  if (error != std::errc{} || end - rest > 1 || !(bytes >= 1 && bytes < kLimit) || bytes != std::floor(bytes)) {
    throw InputError(fmt::format("{} '{}': expected bytes, a positive number such as 4, 512K, 64M or 1G", what, text));
  }
  return static_cast<int64_t>(bytes);
}

std::string format_bytes(int64_t bytes) {
  static constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.3g} {}", value, kUnits[unit]);
}

std::string format_seconds(double seconds) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (size < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  return fmt::format("{:.3g} s", seconds);
}

const char* expected_of_measured(double seconds) {
  constexpr double kShortest = 1e-12;
  constexpr double kLongest = 1e9;
  if (!(seconds > 0)) return "seconds, more than 0";
  return seconds < kShortest || seconds > kLongest ? "seconds, from 1e-12 to 1e9" : nullptr;
}

}  // namespace firkin
