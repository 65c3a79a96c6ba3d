#include "results/numbers.h"

#include <fmt/format.h>

#include "firkin/base/units.h"

namespace firkin {
namespace {

std::string with_real_minus(std::string text) {
  if (text.starts_with('-')) text.replace(0, 1, "−");
  return text;
}

}  // namespace

std::string display_seconds(double seconds) {
  std::string text = format_seconds(seconds);
  if (text.ends_with(" us")) text.replace(text.size() - 2, 1, "µ");
  return with_real_minus(text);
}

std::string display_percent(double ratio, bool sign) {
  const double percent = 100 * ratio;
  std::string text = fmt::format("{:.1f} %", percent);
  if (text == "-0.0 %") text = "0.0 %";
  if (sign && percent > 0 && text != "0.0 %") text.insert(0, 1, '+');
  return with_real_minus(text);
}

std::string display_cap(double cap_mib) {
  return cap_mib >= 100 ? fmt::format("{:.0f}", cap_mib) : fmt::format("{:.3g}", cap_mib);
}

std::string grouped(int64_t value, Medium medium) {
  std::string digits = fmt::format("{}", value);
  if (medium == Medium::kTerminal) return digits;
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), 1, ',');
  return with_real_minus(digits);
}

}  // namespace firkin
