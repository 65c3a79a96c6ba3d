#include "report/sensitivity_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "html.h"
#include "page.h"
#include "page_parts.h"
#include "palette.h"
#include "results/numbers.h"

namespace firkin {
namespace {

std::string display_mib(int64_t bytes) {
  return display_cap(static_cast<double>(bytes) / static_cast<double>(kMiB));
}

const SensitivityPoint& operating_point(const SensitivityReport& report) {
  const auto found = std::ranges::find(report.points, 1.0, &SensitivityPoint::factor);
  if (found == report.points.end()) throw InputError("a sensitivity report without the factor 1; expected it");
  return *found;
}

Table points_table(const SensitivityReport& report) {
  Table table{
      "The best cap and the backward time when one input is multiplied",
      {{"Input", false}, {"Factor"}, {"Best cap (MiB)"}, {"Within 1 %"}, {"Buckets"}, {"Backward"}, {"Exposed"}, {"Keeping today's cap"}},
      {}};
  for (const SensitivityPoint& point : report.points) {
    const std::string near = fmt::format("{} to {}", format_bytes(point.near_low_bytes), format_bytes(point.near_high_bytes));
    table.rows.push_back({{name_of(point.influence), fmt::format("{:g}", point.factor), display_mib(point.cap_bytes), near,
                           fmt::format("{}", point.buckets), display_seconds(point.backward_s), display_seconds(point.exposed_s),
                           display_percent(std::max(0.0, point.kept_backward_s / point.backward_s - 1), true)},
                          point.factor == 1});
  }
  return table;
}

std::vector<KeyFigure> key_figures(const SensitivityReport& report) {
  const SensitivityPoint& now = operating_point(report);
  double worst = 0;
  for (const SensitivityPoint& point : report.points) worst = std::max(worst, point.kept_backward_s / point.backward_s - 1);
  return {{"Best cap", display_mib(now.cap_bytes) + " MiB", fmt::format("{} buckets", now.buckets)},
          {"Backward with it", display_seconds(now.backward_s), display_seconds(now.exposed_s) + " of it exposed"},
          {"Caps within 1 %", fmt::format("{} – {}", display_mib(now.near_low_bytes), display_mib(now.near_high_bytes)),
           "MiB, around the best"},
          {"Keeping it costs at most", display_percent(worst), "when one input changes to 1/8 to 8 times"}};
}

std::vector<std::string> lead_paragraphs(const SensitivityReport& report) {
  std::vector<std::string> texts = report.notes;
  for (const Elasticity& elasticity : report.elasticities) {
    std::string words = elasticity.words;
    if (!words.empty() && words[0] == 'f') words[0] = 'F';
    texts.push_back(words + ".");
  }
  return texts;
}

}  // namespace

std::string render_sensitivity(const SensitivityReport& report, const nlohmann::json& data) {
  const std::vector<Chart> charts = sensitivity_charts(report);
  const std::string heading = fmt::format("The best cap is {} MiB. How it moves with bytes, network and computation",
                                          display_mib(operating_point(report).cap_bytes));
  const std::string tables = "<section class=\"tables\"><h2>The numbers</h2>\n" + html_table(points_table(report)) + "</section>\n";
  return fill_page(empty_page(), {{"title", "Sensitivity · Firkin"},
                                  {"light colours", colour_declarations(Scheme::kLight)},
                                  {"dark colours", colour_declarations(Scheme::kDark)},
                                  {"kicker", escape_html("firkin predict · " + report.workload)},
                                  {"heading", escape_html(heading)},
                                  {"lead", paragraphs(lead_paragraphs(report))},
                                  {"figures", figures_html(key_figures(report))},
                                  {"charts", charts_html(charts)},
                                  {"tables", tables},
                                  {"writer", "firkin predict --sensitivity"},
                                  {"data file", "predict.json"},
                                  {"reading hidden", " hidden"},
                                  {"origin", command_html(report.command_line, "")},
                                  {"results island", json_for_script(data)},
                                  {"charts island", json_for_script(charts_island(charts))}});
}

}  // namespace firkin
