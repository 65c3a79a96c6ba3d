#include "html.h"

#include <fmt/format.h>

#include <stdexcept>

namespace firkin {

std::string escape_html(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string json_for_script(const nlohmann::json& value) {
  const std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::string safe;
  safe.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {  // JSON has it only within strings, where an escape means the same
      safe += "\\u003c";
    } else {
      safe += c;
    }
  }
  return safe;
}

std::string element(std::string_view name, std::string_view text) {
  return fmt::format("<{0}>{1}</{0}>", name, escape_html(text));
}

std::string html_table(const Table& table) {
  const auto alignment = [&table](size_t column) { return table.columns[column].numeric ? " class=\"number\"" : ""; };
  const std::string caption = escape_html(table.caption);
  std::string html = fmt::format(
      "<div class=\"table\" role=\"region\" aria-label=\"{0}\" tabindex=\"0\"><table><caption><span>{0}</span></caption>\n<thead><tr>",
      caption);
  for (size_t i = 0; i < table.columns.size(); ++i) {
    html += fmt::format("<th scope=\"col\"{}>{}</th>", alignment(i), escape_html(table.columns[i].title));
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const Table::Row& row : table.rows) {
    html += row.highlighted ? "<tr class=\"best\">" : "<tr>";
    for (size_t i = 0; i < row.cells.size(); ++i) {
      const std::string cell = escape_html(row.cells[i]);
      html += i == 0 ? fmt::format("<th scope=\"row\"{}>{}</th>", alignment(i), cell) : fmt::format("<td{}>{}</td>", alignment(i), cell);
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string fill_page(std::string_view page, const std::map<std::string, std::string>& values) {
  constexpr std::string_view kOpen = "<!--[";
  constexpr std::string_view kClose = "]-->";
  std::string filled;
  for (size_t at = 0;;) {
    const size_t open = page.find(kOpen, at);
    filled += page.substr(at, open - at);
    if (open == std::string_view::npos) return filled;
    const size_t close = page.find(kClose, open);
    const std::string name(page.substr(open + kOpen.size(), close - open - kOpen.size()));
    const auto value = values.find(name);
    if (value == values.end()) throw std::logic_error("the page has no value for " + name);
    filled += value->second;
    at = close + kClose.size();
  }
}

}  // namespace firkin
