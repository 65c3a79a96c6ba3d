#include "report/report.h"

#include <fmt/format.h>

#include "answer.h"
#include "chart_builders.h"
#include "html.h"
#include "page.h"
#include "page_parts.h"
#include "palette.h"
#include "tables.h"

namespace firkin {
namespace {

using nlohmann::json;

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

std::string origin_html(const Results& results) {
  std::string html = facts_html("Environment", results.environment) + facts_html("Model", results.model);
  return html + command_html(results.command_line, results.started);
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
                                  {"writer", "firkin report"},
                                  {"data file", "results.json"},
                                  {"reading hidden", results.answer ? "" : " hidden"},
                                  {"origin", origin_html(results)},
                                  {"results island", json_for_script(document)},
                                  {"charts island", json_for_script(charts_island(charts))}});
}

}  // namespace firkin
