// Bytes and seconds: constants, parsing, and human-readable formatting.
//
//   const int64_t cap = parse_size("25MiB", "--cap");  // 26214400
//   format_bytes(cap);                                 // "25 MiB"
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace firkin {

inline constexpr int64_t kKiB = int64_t{1} << 10;
inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr int64_t kGiB = int64_t{1} << 30;
inline constexpr int64_t kFloatBytes = 4;  // the size of a float32 element

// Bytes in MiB.
inline double mib(double bytes) {
  return bytes / static_cast<double>(kMiB);
}
inline double mib(int64_t bytes) {
  return mib(static_cast<double>(bytes));
}

// Bytes in MiB, as the shortest number that rounds to these bytes: 0.05 for 52429.
double short_mib(int64_t bytes);

// Parses the whole text as a decimal number; none if it is anything else, or does not fit.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Parses a number followed directly by one of `units` and applies the unit's factor; NaN for anything else.
double parse_in_units(std::string_view text, std::initializer_list<std::pair<std::string_view, double>> units);

// Bytes in a size given in MiB, rounded to the nearest byte. Throws InputError unless mib is finite, positive and below
// 2^43 (8 EiB). `what` names the value in the message ("cap_mib").
int64_t bytes_from_mib(double mib, const std::string& what);

// Parses a size with its unit: B; KiB, MiB, GiB, TiB or, meaning the same, K, M, G; KB, MB, GB for powers of 1000
// ("25MiB", "0.5GiB"). Rounds to the nearest byte. takes_bytes: a plain number is bytes, as in nccl-tests. Throws
// InputError unless the result is at least one byte and below 2^53; `what` names the value in the message ("--cap").
int64_t parse_size(const std::string& text, const std::string& what, bool takes_bytes = false);

// Parses a time with its unit: us, ms, s, m or min, h ("500ms", "90s", "5m"). Throws InputError if it is negative, above
// 1e9 seconds, not a number, or a number without a unit.
double parse_seconds(const std::string& text, const std::string& what);

// Three significant digits and a binary unit: "512 B", "1.5 KiB", "25 MiB", "7.44 GiB".
std::string format_bytes(int64_t bytes);

// Three significant digits and a unit: "0 s", "12.3 us", "4.56 ms", "1.2 s".
std::string format_seconds(double seconds);

// "1 rank", "2 ranks": of a noun whose plural ends in s.
std::string counted(int64_t count, std::string_view noun);

// Seconds since `start`.
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What a measured time should have been, for a message: nullptr if valid, "seconds, more than 0", or, outside what a
// clock measures, "seconds, from 1e-12 to 1e9".
const char* expected_of_measured(double seconds);

}  // namespace firkin
