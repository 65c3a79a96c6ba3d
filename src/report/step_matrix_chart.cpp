// Step time of every setting in every configuration.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "chart_builders.h"
#include "chart_parts.h"
#include "results/numbers.h"

namespace firkin {
namespace {

nlohmann::json step_mark(const StepDot& row, const std::string& first_setting) {
  nlohmann::json mark = {{"configuration", row.configuration},
                         {"setting", row.setting.empty() ? first_setting : row.setting},
                         {"measured", "–"},
                         {"interval", "–"}};
  if (!row.measured_s) {
    mark["problem"] = row.setting.empty() ? row.problem : row.setting + ": " + row.problem;
    return mark;
  }
  mark["time_s"] = *row.measured_s;
  mark["measured"] = display_seconds(*row.measured_s);
  mark["end"] = row.measured_ci_s ? std::max(*row.measured_s, row.measured_ci_s->high) : *row.measured_s;
  add_interval(mark, row.measured_ci_s);
  return mark;
}

}  // namespace

std::optional<Chart> step_matrix_chart(const std::vector<StepDot>& steps) {
  const auto is_measured = [](const StepDot& row) { return row.measured_s.has_value(); };
  const auto first = std::ranges::find_if(steps, is_measured);
  if (first == steps.end()) return std::nullopt;
  nlohmann::json marks = nlohmann::json::array();
  std::set<std::string> configurations;
  std::vector<std::string> problems;
  for (const StepDot& row : steps) {
    marks.push_back(step_mark(row, first->setting));
    configurations.insert(row.configuration);
    if (!row.measured_s) problems.push_back(fmt::format("{} ({})", row.configuration, marks.back()["problem"].get<std::string>()));
  }
  Chart chart;
  chart.id = "steps";
  chart.title = "Step time by configuration";
  chart.caption = "Medians of real steps with 95 % intervals; hollow: steps without communication.";
  if (!problems.empty()) chart.caption += fmt::format(" Not measured: {}.", fmt::join(problems, "; "));
  chart.summary = fmt::format("Step times of {} settings in {} configurations; {} not measured.", std::ranges::count_if(steps, is_measured),
                              configurations.size(), problems.size());
  chart.spec = filled_chart("step_matrix", {{"steps", marks}});
  return chart;
}

}  // namespace firkin
