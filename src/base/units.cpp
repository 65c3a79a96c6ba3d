#include "firkin/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>

#include "firkin/base/error.h"

namespace firkin {

double parse_in_units(std::string_view text, std::initializer_list<std::pair<std::string_view, double>> units) {
  double number = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto unit =
      std::ranges::find(units, text.substr(static_cast<size_t>(rest - text.data())), &std::pair<std::string_view, double>::first);
  return error == std::errc{} && unit != units.end() ? number * unit->second : std::nan("");
}

double short_mib(int64_t bytes) {
  constexpr int64_t kExact = int64_t{1} << std::numeric_limits<double>::digits;
  for (int digits = 1; bytes < kExact && digits < std::numeric_limits<double>::max_digits10; ++digits) {
    const double shorter = parse_number<double>(fmt::format("{:.{}g}", mib(bytes), digits)).value();
    if (std::llround(shorter * static_cast<double>(kMiB)) == bytes) return shorter;
  }
  return mib(bytes);
}

int64_t bytes_from_mib(double mib, const std::string& what) {
  constexpr auto kBytes = static_cast<double>(kMiB);
  constexpr double kTooMany = 0x1p63;  // the first number that int64_t cannot hold
  if (!(mib > 0) || mib * kBytes >= kTooMany) {
    throw InputError(fmt::format("{}: {} is not a size; expected MiB, a positive number such as 25 or 0.5", what, mib));
  }
  const int64_t bytes = std::llround(mib * kBytes);
  if (bytes == 0) throw InputError(fmt::format("{}: {} MiB is less than one byte", what, mib));
  return bytes;
}

int64_t parse_size(const std::string& text, const std::string& what, bool takes_bytes) {
  const double bytes = parse_in_units(text, {{"", takes_bytes ? 1 : std::nan("")},
                                             {"B", 1},
                                             {"K", 0x1p10},
                                             {"KiB", 0x1p10},
                                             {"KB", 1e3},
                                             {"M", 0x1p20},
                                             {"MiB", 0x1p20},
                                             {"MB", 1e6},
                                             {"G", 0x1p30},
                                             {"GiB", 0x1p30},
                                             {"GB", 1e9},
                                             {"TiB", 0x1p40}});
  const bool counts_bytes = !text.empty() && std::isdigit(static_cast<unsigned char>(text.back())) != 0;
  if (!(bytes >= 0.5 && bytes < 0x1p53) || (counts_bytes && bytes != std::floor(bytes))) {
    throw InputError(fmt::format("{} {}: expected a size {}, such as {}, 25MiB or 1GiB", what, text,
                                 takes_bytes ? "in bytes or with its unit" : "with its unit", takes_bytes ? "4, 64K" : "64KiB"));
  }
  return std::llround(bytes);
}

double parse_seconds(const std::string& text, const std::string& what) {
  constexpr double kLongest = 1e9;
  const double seconds = parse_in_units(text, {{"s", 1}, {"us", 1e-6}, {"ms", 1e-3}, {"m", 60}, {"min", 60}, {"h", 3600}});
  if (!(seconds >= 0 && seconds <= kLongest)) {
    throw InputError(fmt::format("{} {}: expected a time with its unit, such as 500ms, 90s or 5m", what, text));
  }
  return seconds;
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

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

const char* expected_of_measured(double seconds) {
  constexpr double kShortest = 1e-12;
  constexpr double kLongest = 1e9;
  if (!(seconds > 0)) return "seconds, more than 0";
  return seconds < kShortest || seconds > kLongest ? "seconds, from 1e-12 to 1e9" : nullptr;
}

}  // namespace firkin
