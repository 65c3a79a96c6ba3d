// Files that are placed in the binary at build time. The page without its results is one of them: template, style, script, Vega's
// JavaScript and its licences in one HTML text, made by tools/assemble_report_page.py.
#pragma once

#include <string_view>

namespace firkin {

// Holds "<!--[NAME]-->" where fill_page() puts the results.
std::string_view empty_page();

// tools/render_charts.py.
std::string_view render_charts_script();

// THIRD_PARTY_NOTICES: the licences of what the program contains of others.
std::string_view third_party_notices();

}  // namespace firkin
