// The page without its results: template, style, script and Vega's JavaScript in one HTML text, made at build time by
// tools/assemble_report_page.py and placed in the binary.
#pragma once

#include <string_view>

namespace firkin {

// Holds "<!--[NAME]-->" where fill_page() puts the results.
std::string_view empty_page();

// tools/render_charts.py.
std::string_view render_charts_script();

}  // namespace firkin
