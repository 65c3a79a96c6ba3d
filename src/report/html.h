// HTML from plain text: whatever the text holds, it stays text.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "results/table.h"

namespace firkin {

// Escapes & < > " ' so that `text` can stand in an element or a quoted attribute.
std::string escape_html(std::string_view text);

// JSON for a <script type="application/json"> element: every "<" is written as an escape, so no content can end the element.
// Strings that are not UTF-8 are repaired with U+FFFD.
std::string json_for_script(const nlohmann::json& value);

// A <table> with caption and column headers; the first cell of a row is its header. It scrolls sideways where the page is too narrow.
std::string html_table(const Table& table);

// `text` within <NAME>...</NAME>, escaped.
std::string element(std::string_view name, std::string_view text);

// Replaces every "<!--[NAME]-->" by the value of that name, which is not searched again.
// Throws std::logic_error when the page asks for a name that has no value.
std::string fill_page(std::string_view page, const std::map<std::string, std::string>& values);

}  // namespace firkin
