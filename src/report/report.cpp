#include "firkin/report/report.h"

#include <fmt/format.h>

#include "answer.h"
#include "chart_builders.h"
#include "html.h"
#include "page.h"
#include "palette.h"
#include "tables.h"

namespace firkin {
namespace {

using nlohmann::json;

std::string figures_html(const std::vector<KeyFigure>& figures) {
  if (figures.empty()) return "";
  std::string html = "<dl class=\"figures\">\n";
  for (const KeyFigure& figure : figures) {
    html += fmt::format("<div><dt>{}</dt><dd class=\"value\">{}</dd><dd class=\"note\">{}</dd></div>\n", escape_html(figure.label),
                        escape_html(figure.value), escape_html(figure.note));
  }
  return html + "</dl>\n";
}

std::string chart_html(const Chart& chart) {
  return fmt::format(
      "<figure id=\"figure-{0}\"><h2>{1}</h2>\n<div class=\"chart\" id=\"chart-{0}\" role=\"img\" aria-label=\"{2}\"></div>\n"
      "<figcaption>{3}</figcaption></figure>\n",
      chart.id, escape_html(chart.title), escape_html(chart.summary), escape_html(chart.caption));
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

std::string folded(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_html(summary), content);
}

std::string tables_html(const Results& results) {
  std::string html;
  if (!results.curve.empty()) html += html_table(curve_table(results));
  if (!results.strategies.empty()) html += html_table(strategy_table(results));
  if (!results.allreduce.empty()) {
    html += folded(fmt::format("All-reduce times ({} sizes)", results.allreduce.size()), html_table(allreduce_table(results)));
  }
  if (results.profile) {
    html += folded(fmt::format("Gradient-ready times ({} tensors)", results.profile->names.size()), html_table(ready_table(results)));
  }
  return html.empty() ? "" : "<section class=\"tables\"><h2>The numbers</h2>\n" + html + "</section>\n";
}

std::string facts_html(const std::string& title, const Facts& facts) {
  if (facts.empty()) return "";
  std::string html = "<section>" + element("h2", title) + "\n<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) html += "<div>" + element("dt", name) + element("dd", value) + "</div>\n";
  return html + "</dl></section>\n";
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

std::string origin_html(const Results& results) {
  std::string html = facts_html("Environment", results.environment) + facts_html("Model", results.model);
  if (!results.command_line.empty()) {
    html += "<section class=\"wide\"><h2>Command</h2>\n<pre><code>" + escape_html(shell_words(results.command_line)) + "</code></pre>";
    if (!results.started.empty()) html += element("p", "Started " + results.started);
    html += "</section>\n";
  }
  return html;
}

std::string paragraphs(const std::vector<std::string>& texts) {
  std::string html;
  for (const std::string& text : texts) html += element("p", text);
  return html;
}

}  // namespace

std::string render_report(const json& document) {
  const Results results = parse_results(document);
  const Answer answer = put_in_words(results);
  const std::vector<Chart> charts = charts_for(results);
  return fill_page(empty_page(), {{"title", escape_html(answer.title)},
                                  {"light colours", colour_declarations(Scheme::kLight)},
                                  {"dark colours", colour_declarations(Scheme::kDark)},
                                  {"kicker", escape_html(answer.kicker)},
                                  {"heading", escape_html(answer.heading)},
                                  {"lead", paragraphs(answer.lead)},
                                  {"figures", figures_html(answer.figures)},
                                  {"charts", charts_html(charts)},
                                  {"tables", tables_html(results)},
                                  {"reading hidden", results.answer ? "" : " hidden"},
                                  {"origin", origin_html(results)},
                                  {"results island", json_for_script(document)},
                                  {"charts island", json_for_script(charts_island(charts))}});
}

}  // namespace firkin
