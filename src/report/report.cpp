#include "report/report.h"

#include <fmt/format.h>

#include <map>

#include "answer.h"
#include "chart_builders.h"
#include "html.h"
#include "page.h"
#include "page_parts.h"
#include "palette.h"
#include "shared_charts.h"

namespace firkin {
namespace {

std::string folded(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_html(summary), content);
}

// What the answer says about a cap becomes a last column.
Table remarked_curve(const Results& results) {
  Table table = curve_table(results.curve, Medium::kPage);
  if (!results.answer) return table;
  table.columns.push_back({"", false});
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::string remark = remark_on(*results.answer, results.curve[i].cap_mib);
    table.rows[i].cells.push_back(remark);
    table.rows[i].highlighted = remark.ends_with("best");
  }
  return table;
}

std::string tables_html(const Results& results, const Answer& answer) {
  std::string html;
  if (!answer.settings.empty()) html += html_table(paste_table(answer.settings));
  if (results.comparison) {
    html += html_table(difference_table(*results.comparison));
    for (const Comparison& part : by_configuration(*results.comparison)) html += html_table(comparison_table(part, Medium::kPage));
  }
  if (results.prediction) {
    for (const Table& table : prediction_tables(*results.prediction, Medium::kPage)) html += html_table(table);
  }
  if (!results.curve.empty()) html += html_table(remarked_curve(results));
  if (!results.strategies.empty()) html += html_table(strategy_table(compared_strategies(results), Medium::kPage));
  for (const StepConfiguration& configuration : results.configurations) {
    if (configuration.strategies.empty()) continue;
    Table table = strategy_table(configuration.strategies, Medium::kPage);
    table.caption = name_of(configuration.model);
    html += html_table(table);
  }
  if (!results.traces.empty()) html += html_table(traces_table(results.traces, Medium::kPage));
  if (results.layers) html += html_table(layers_table(*results.layers, Medium::kPage));
  if (results.training) html += html_table(training_table(*results.training, Medium::kPage));
  if (!results.chunks.empty()) html += html_table(chunks_table(results.chunks, Medium::kPage));
  if (!results.allreduce.empty()) {
    const std::string table = html_table(allreduce_table(results.allreduce, Medium::kPage));
    html += html.empty() ? table : folded(fmt::format("All-reduce times ({} sizes)", results.allreduce.size()), table);
  }
  if (results.profile) {
    html += folded(fmt::format("Gradient-ready times ({} tensors)", results.profile->tensors.names.size()),
                   html_table(profile_table(results.profile->tensors)));
  }
  return html.empty() ? "" : "<section class=\"tables\"><h2>The numbers</h2>\n" + html + "</section>\n";
}

std::string facts_html(const std::string& title, const Facts& facts) {
  if (facts.empty()) return "";
  std::string html = "<section>" + element("h2", title) + "\n<dl class=\"facts\">\n";
  for (const auto& [name, value] : facts) html += "<div>" + element("dt", name) + element("dd", value) + "</div>\n";
  return html + "</dl></section>\n";
}

std::string origin_html(const RunHead& run) {
  Facts environment = facts_of(run.environment);
  if (run.seed) environment.emplace_back("seed", fmt::format("{}", *run.seed));
  const Facts model = run.model ? facts_of(*run.model) : Facts();
  return facts_html("Environment", environment) + facts_html("Model", model) + command_html(run.command_line, run.started);
}

// One of several results: its answer above its charts.
std::string answer_html(const Answer& answer) {
  return "<header class=\"run\"><p class=\"kicker\">" + escape_html(answer.kicker) + "</p>\n" + element("h2", answer.heading) +
         paragraphs(answer.lead) + "</header>\n";
}

// The trainings among several results, a row each.
std::string shared_table_html(const std::vector<Results>& several, const std::vector<std::string>& names) {
  std::vector<std::string> rows;
  std::vector<TrainingSection> sections;
  for (size_t i = 0; i < several.size(); ++i) {
    if (!several[i].training) continue;
    rows.push_back(names[i]);
    sections.push_back(*several[i].training);
    sections.back().rows.clear();
  }
  return sections.size() < 2 ? ""
                             : "<section class=\"tables\">" + html_table(trainings_table(rows, sections, Medium::kPage)) + "</section>\n";
}

std::string page_of(std::map<std::string, std::string> parts, const std::vector<Chart>& charts, const nlohmann::json& data) {
  parts.merge(std::map<std::string, std::string>{{"light colours", colour_declarations(Scheme::kLight)},
                                                 {"dark colours", colour_declarations(Scheme::kDark)},
                                                 {"writer", "firkin report"},
                                                 {"data file", "results.json"},
                                                 {"results island", json_for_script(data)},
                                                 {"charts island", json_for_script(charts_island(charts))}});
  return fill_page(empty_page(), parts);
}

}  // namespace

std::string render_report(const Results& results) {
  const Answer answer = put_in_words(results);
  const std::vector<Chart> charts = charts_for(results);
  return page_of({{"title", escape_html(answer.title)},
                  {"kicker", escape_html(answer.kicker)},
                  {"heading", escape_html(answer.heading)},
                  {"lead", paragraphs(answer.lead)},
                  {"figures", figures_html(answer.figures)},
                  {"charts", charts_html(charts)},
                  {"tables", tables_html(results, answer)},
                  {"reading hidden", results.answer ? "" : " hidden"},
                  {"origin", origin_html(results.run)}},
                 charts, results_json(results));
}

std::string render_reports(const std::vector<Results>& several, const std::vector<std::string>& names) {
  if (several.size() == 1) return render_report(several[0]);
  std::vector<Chart> all_charts = shared_charts(several, names);
  std::string charts_part = charts_html(all_charts);
  std::string tables = shared_table_html(several, names);
  std::string origins;
  nlohmann::json data = nlohmann::json::array();
  for (const Results& results : several) {
    Answer answer = put_in_words(results);
    answer.kicker = fmt::format("{}: {}", names[data.size()], answer.kicker);
    std::vector<Chart> charts = charts_for(results);
    for (Chart& chart : charts) chart.id += data.empty() ? "" : fmt::format("-{}", data.size() + 1);
    charts_part += answer_html(answer) + charts_html(charts);
    tables += tables_html(results, answer);
    origins += origin_html(results.run);
    all_charts.insert(all_charts.end(), charts.begin(), charts.end());
    data.push_back(results_json(results));
  }
  const std::string title = fmt::format("{} results", several.size());
  return page_of({{"title", title},
                  {"kicker", "firkin report"},
                  {"heading", title},
                  {"lead", ""},
                  {"figures", ""},
                  {"charts", charts_part},
                  {"tables", tables},
                  {"reading hidden", " hidden"},
                  {"origin", origins}},
                 all_charts, data);
}

}  // namespace firkin
