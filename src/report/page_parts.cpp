#include "page_parts.h"

#include <fmt/format.h>

#include <string_view>

#include "html.h"

namespace firkin {

using nlohmann::json;

namespace {

std::string chart_html(const Chart& chart) {
  return fmt::format(
      "<figure id=\"figure-{0}\"><h2>{1}</h2>\n<div class=\"drawing\"><div class=\"chart\" id=\"chart-{0}\" role=\"img\" "
      "aria-label=\"{2}\"></div></div>\n"
      "<figcaption>{3}</figcaption></figure>\n",
      chart.id, escape_html(chart.title), escape_html(chart.summary), escape_html(chart.caption));
}

// Words for a shell: quoted where one would take them apart.
std::string shell_words(const std::vector<std::string>& words) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=+,./:@%";
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      line += word;
      continue;
    }
    line += '\'';
    for (const char c : word) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
    line += '\'';
  }
  return line;
}

}  // namespace

std::string figures_html(const std::vector<KeyFigure>& figures) {
  if (figures.empty()) return "";
  std::string html = "<dl class=\"figures\">\n";
  for (const KeyFigure& figure : figures) {
    html += fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"note\">{}</dd></div>\n", escape_html(figure.label),
                        escape_html(figure.value), escape_html(figure.note));
  }
  return html + "</dl>\n";
}

std::string charts_html(const std::vector<Chart>& charts) {
  std::string html;
  for (const Chart& chart : charts) html += chart_html(chart);
  return html;
}

json charts_island(const std::vector<Chart>& charts) {
  json island = json::array();
  for (const Chart& chart : charts) island.push_back({{"id", chart.id}, {"spec", chart.spec}});
  return island;
}

std::string paragraphs(const std::vector<std::string>& texts) {
  std::string html;
  for (const std::string& text : texts) html += element("p", text);
  return html;
}

std::string command_html(const std::vector<std::string>& command_line, const std::string& started) {
  if (command_line.empty()) return "";
  std::string html = "<section class=\"wide\"><h2>Command</h2>\n<pre><code>" + escape_html(shell_words(command_line)) + "</code></pre>";
  if (!started.empty()) html += element("p", "Started " + started);
  return html + "</section>\n";
}

}  // namespace firkin
