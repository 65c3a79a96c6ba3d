// Numbers as the page shows them: a real minus sign, a space before the unit.
#pragma once

#include <cstdint>
#include <string>

#include "results/table.h"

namespace firkin {

// Three significant digits: "415 ms", "12.3 µs".
std::string display_seconds(double seconds);

// "0.4 %"; with `sign`, "+0.4 %" and "−0.4 %".
std::string display_percent(double ratio, bool sign = false);

// A cap without its unit, three significant digits: "25", "0.5", "1024".
std::string display_cap(double cap_mib);

// A whole number: digits in groups of three on a page ("4,951,296"), plain in the terminal.
std::string grouped(int64_t value, Medium medium);

}  // namespace firkin
