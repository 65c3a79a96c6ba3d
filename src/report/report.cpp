#include "report/report.h"

#include <fmt/format.h>

#include <map>
#include <stdexcept>

#include "firkin/base/file.h"
#include "firkin/base/json_text.h"
#include "report/charts.h"

// charts.cpp
extern "C" const char firkin_report_page_begin[], firkin_report_page_end[], firkin_notices_begin[], firkin_notices_end[];

namespace firkin {
namespace {

constexpr const char* kPageFile = "report.html";

std::string with_replaced(std::string_view text, const std::map<char, std::string_view>& replacements) {
  std::string replaced;
  replaced.reserve(text.size());
  for (const char c : text) {
    const auto found = replacements.find(c);
    replaced += found == replacements.end() ? std::string_view(&c, 1) : found->second;
  }
  return replaced;
}

// Escapes & < > " ' so that the text can stand in an element or a quoted attribute.
std::string escape_html(std::string_view text) {
  static const std::map<char, std::string_view> kEntities = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  return with_replaced(text, kEntities);
}

// For lines in large letters: "14.6 %" does not wrap.
std::string heading_html(std::string_view text) {
  std::string html = escape_html(text);
  for (size_t at = 0; (at = html.find(" %", at)) != std::string::npos;) html.replace(at, 1, "&nbsp;");
  return html;
}

// JSON for a <script type="application/json"> element, which no content can end. Repairs invalid UTF-8 with U+FFFD.
std::string json_for_script(const nlohmann::json& value) {
  return with_replaced(dump_json(value), {{'<', "\\u003c"}});  // JSON has it only within strings, where an escape means the same
}

std::string element(std::string_view name, std::string_view text) {
  return fmt::format("<{0}>{1}</{0}>", name, escape_html(text));
}

// The first cell of a row is its header. The table scrolls sideways if the page is too narrow.
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

// Replaces every "<!--[NAME]-->" by the value of that name, which is not searched again.
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

std::string charts_html(const std::vector<Chart>& charts) {
  std::string html;
  for (const Chart& chart : charts) {
    html += fmt::format(
        "<figure id=\"figure-{0}\"><h2>{1}</h2>\n<div class=\"drawing\"><div class=\"chart\" id=\"chart-{0}\" role=\"img\" "
        "aria-label=\"{2}\"></div></div>\n"
        "<figcaption>{3}</figcaption>\n"
        "<p class=\"save\" hidden>Save as <button type=\"button\" data-chart=\"{0}\" data-format=\"png\">PNG</button> "
        "<button type=\"button\" data-chart=\"{0}\" data-format=\"svg\">SVG</button></p></figure>\n",
        chart.id, escape_html(chart.title), escape_html(chart.summary), escape_html(chart.caption));
  }
  return html;
}

// Joins words for a shell; those that it would split or expand are quoted.
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

std::string paragraphs(const std::vector<std::string>& texts) {
  std::string html;
  for (const std::string& text : texts) html += element("p", text);
  return html;
}

std::string folded(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_html(summary), content);
}

// What limits the answer, and what was noticed on the way: once, in a box.
std::string warnings_html(const Wording& answer) {
  if (answer.warnings.empty() && answer.notes.empty()) return "";
  std::string html = "<aside class=\"warnings\">\n" + paragraphs(answer.warnings);
  if (!answer.notes.empty()) html += folded(fmt::format("Notes of the measurement ({})", answer.notes.size()), paragraphs(answer.notes));
  return html + "</aside>\n";
}

// The settings, one below another; page.html's script turns them into a menu and shows the buttons.
std::string settings_html(const std::vector<PasteSetting>& settings) {
  if (settings.empty()) return "";
  std::string html =
      "<section class=\"paste\" aria-label=\"The setting to paste\"><label hidden>The setting for <select></select></label>\n";
  for (const PasteSetting& setting : settings) {
    html += fmt::format(
        "<div data-tool=\"{0}\"><p class=\"tool\">{0}</p><pre><code>{1}</code></pre><button type=\"button\" hidden>Copy</button>"
        "<p class=\"note\">{2}</p></div>\n",
        escape_html(setting.tool), escape_html(setting.setting), escape_html(setting.note));
  }
  return html + "</section>\n";
}

// The curve's table with a last column for what the answer says about each cap.
Table remarked_curve(const Results& results) {
  Table table = curve_table(results.curve, kPage);
  if (!results.decision) return table;
  table.columns.push_back({"", false});
  for (size_t i = 0; i < table.rows.size(); ++i) {
    const std::string remark = remark_on(results, results.curve[i].cap_bytes);
    table.rows[i].cells.push_back(remark);
    table.rows[i].highlighted = !remark.empty() && remark != "not told apart";
  }
  return table;
}

std::string tables_html(const Results& results) {
  std::string html;
  const auto add = [&html](const std::vector<Table>& tables) {
    for (const Table& table : tables) html += html_table(table);
  };
  if (results.prediction) add(prediction_tables(*results.prediction, kPage));
  if (!results.curve.empty()) html += html_table(remarked_curve(results));
  if (!results.strategies.empty()) html += html_table(strategy_table(results.strategies, kPage));
  for (const StepConfiguration& configuration : results.configurations) {
    if (configuration.strategies.empty()) continue;
    Table table = strategy_table(configuration.strategies, kPage);
    table.caption = name_of(configuration.model);
    html += html_table(table);
  }
  add(section_tables(results, kPage));
  if (!results.allreduce.empty()) {
    const std::string table = html_table(allreduce_table(results.allreduce, kPage));
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
  std::string html = facts_html("Environment", environment) + facts_html("Model", run.model ? facts_of_fields(*run.model) : Facts());
  if (run.command_line.empty()) return html;
  html += "<section class=\"wide\"><h2>Command</h2>\n<pre><code>" + escape_html(shell_words(run.command_line)) + "</code></pre>";
  if (!run.started.empty()) html += element("p", "Started " + run.started);
  return html + "</section>\n";
}

// How sure the answer is, and the best of Firkin's own engine.
std::string certainty_html(const Wording& answer) {
  std::string html;
  const auto add = [&html](const std::string& text) { html += "<p class=\"certainty\">" + heading_html(text) + "</p>\n"; };
  if (!answer.certainty.empty()) add(answer.certainty);
  if (!answer.own_engine.empty()) add(fmt::format("The best with Firkin's own engine is {}.", answer.own_engine));
  if (!answer.next_step.empty()) add(fmt::format("Next: {}", answer.next_step));
  return html;
}

}  // namespace

std::string_view third_party_notices() {
  return {firkin_notices_begin, firkin_notices_end};
}

std::string render_report(const Results& results) {
  const Wording answer = summarize(results);
  const std::vector<Chart> charts = charts_for(results);
  nlohmann::json island = nlohmann::json::array();
  for (const Chart& chart : charts) island.push_back({{"id", chart.id}, {"title", chart.title}, {"spec", chart.spec}});
  return fill_page({firkin_report_page_begin, firkin_report_page_end},
                   {{"charts island", json_for_script(island)},
                    {"results island", json_for_script(results_json(results))},
                    {"title", escape_html(answer.kicker)},
                    {"kicker", escape_html(answer.kicker)},
                    {"heading", heading_html(answer.heading)},
                    {"certainty", certainty_html(answer)},
                    {"warnings", warnings_html(answer)},
                    {"settings", settings_html(answer.settings)},
                    {"charts", charts_html(charts)},
                    {"lead", answer.lead.empty() ? "" : "<section class=\"lead\">" + paragraphs(answer.lead) + "</section>\n"},
                    {"tables", tables_html(results)},
                    {"origin", origin_html(results.run)}});
}

Results with_files(Results results, const std::vector<OutputFile>& files) {
  results.run.files = {kPageFile, kResultsFile};
  for (const OutputFile& file : files) results.run.files.push_back(file.name);
  return results;
}

void write_result(const std::filesystem::path& folder, const Results& results, const std::vector<OutputFile>& files) {
  write_files(folder, results, files);
  write_file_atomically(folder / kPageFile, render_report(results));
}

}  // namespace firkin
