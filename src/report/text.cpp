// Results for a terminal.
#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "firkin/base/progress.h"
#include "firkin/base/units.h"
#include "firkin/plan/uncertainty.h"
#include "report/report.h"

namespace firkin {
namespace {

// What is made with all columns of a table where the terminal is wide enough for it, otherwise with those that fit 80 characters.
std::string as_wide_as_the_terminal(const std::function<std::string(unsigned shown)>& text_with) {
  constexpr size_t kOrdinary = 80;
  const size_t columns = terminal_columns();
  if (columns <= kOrdinary) return text_with(kFirstTable);
  const std::string wide = text_with(kWideTable);
  return widest_line(wide) <= columns ? wide : text_with(kFirstTable);
}

template <class Rows>
std::string fitted(Table (*table)(const Rows& rows, unsigned shown), const Rows& rows, const std::vector<std::string>& remarks = {}) {
  return as_wide_as_the_terminal([&](unsigned shown) { return terminal_table(table(rows, shown), remarks); });
}

// Few letters: the widest rows leave a dozen columns.
std::string short_remark(const TuneAnswer& answer, double cap_mib) {
  const std::string remark = remark_on(answer, cap_mib);
  if (remark.empty() || remark == "as good") return "";
  return "< " + (remark.find(',') == std::string::npos ? remark.substr(0, remark.find(' ')) : "best");
}

std::string curve_in_text(const Results& results) {
  std::vector<std::string> remarks;
  for (const CurveRow& row : results.curve) remarks.push_back(results.answer ? short_remark(*results.answer, row.cap_mib) : "");
  return fitted(curve_table, results.curve, remarks);
}

// How far predictions may be off; nothing where that is not known.
std::string range_in_text(const std::vector<CurveRow>& curve) {
  if (curve.empty() || !curve[0].predicted_s || !curve[0].predicted_range_s) return "";
  return wrapped("", fmt::format("Interval of each prediction: {} to {}. {}",
                                 display_percent(curve[0].predicted_range_s->low / *curve[0].predicted_s - 1, true),
                                 display_percent(curve[0].predicted_range_s->high / *curve[0].predicted_s - 1, true), kRangeHeld));
}

std::string captioned_in_text(const Table& table) {
  std::vector<std::string> remarks;
  for (const Table::Row& row : table.rows) remarks.push_back(row.highlighted ? "<" : "");
  return wrapped("", table.caption) + terminal_table(table, remarks);
}

// Several tables, each as wide as it fits.
template <class Section>
std::vector<std::string> all_fitted(std::vector<Table> (*tables)(const Section& section, unsigned shown), const Section& section,
                                    const std::function<std::string(const Table&)>& text_of) {
  const std::vector<Table> narrow = tables(section, kFirstTable), wide = tables(section, kWideTable);
  std::vector<std::string> texts;
  for (size_t i = 0; i < narrow.size(); ++i) {
    texts.push_back(as_wide_as_the_terminal([&](unsigned shown) { return text_of(shown == kWideTable ? wide[i] : narrow[i]); }));
  }
  return texts;
}

// What makes wide intervals narrow; nothing when they are.
std::string advice_on(const std::vector<StrategyRow>& rows) {
  constexpr double kWide = 1.25;  // upper over lower end
  const auto wide = std::ranges::count_if(
      rows, [](const StrategyRow& row) { return row.measured_ci_s && row.measured_ci_s->high > kWide * row.measured_ci_s->low; });
  if (wide == 0) return "";
  return wrapped("", fmt::format("{} of {} intervals are wider than a quarter of the step: more --blocks, or a machine with less other "
                                 "load, make them narrower.",
                                 wide, rows.size()));
}

std::string comparison_in_text(const Comparison& comparison) {
  std::string same;
  for (const auto& [name, value] : comparison.same_facts) same += (same.empty() ? "" : "; ") + name + " " + value;
  std::string text = fmt::format("A  {}\nB  {}\n\n", comparison.a_file, comparison.b_file);
  text += wrapped("In both: ", same.empty() ? "nothing" : same);
  text += comparison.different_facts.empty() ? "No recorded setting differs between the runs.\n" : "Different:\n";
  for (const DifferentFact& fact : comparison.different_facts) {
    text += wrapped("  ", fact.name);
    text += wrapped("    A  ", fact.a.empty() ? "not stated" : fact.a);
    text += wrapped("    B  ", fact.b.empty() ? "not stated" : fact.b);
  }
  if (comparison.settings.empty()) text += "\nThe runs share no setting.\n";
  for (const Comparison& part : by_configuration(comparison)) {
    const std::string& configuration = part.settings[0].configuration;
    text += '\n';
    if (!configuration.empty()) text += wrapped("", configuration);
    text += fitted(comparison_table, part);
  }
  for (const std::string& name : comparison.only_a) text += wrapped("Only in A: ", name);
  for (const std::string& name : comparison.only_b) text += wrapped("Only in B: ", name);
  return text;
}

// Whether the setting is worth typing, and what it saves.
std::string worth(const DecisionSection& decision) {
  constexpr double kHoursOfADay = 24;
  if (has_outcome(decision, Outcome::kSameBuckets)) return "no: the best cap makes the default's buckets";
  if (has_outcome(decision, Outcome::kGain) && decision.over_default) {
    return fmt::format("yes: a day of training with PyTorch's default takes {:.1f} hours less",
                       kHoursOfADay * (1 - decision.over_default->ratio));
  }
  return keeps_default(decision) ? "no: PyTorch's default does as well" : "not shown: more --blocks would settle it";
}

}  // namespace

std::string answer_in_text(const Results& results, bool with_settings) {
  const Answer answer = put_in_words(results);
  std::string text = wrapped("", answer.heading);
  if (!answer.certainty.empty()) text += wrapped("", answer.certainty);
  if (!answer.settings.empty()) text += wrapped("  paste     ", answer.settings[0].setting);
  if (results.answer) text += wrapped("  worth it  ", worth(results.answer->decision));
  if (!answer.own_engine.empty()) text += wrapped("  firkin    ", answer.own_engine);
  if (!answer.settings.empty()) text += '\n';
  for (const std::string& warning : answer.warnings) text += wrapped("Warning: ", warning);
  for (const std::string& paragraph : answer.lead) text += wrapped("", paragraph);
  for (const std::string& note : answer.notes) text += wrapped("Note: ", note);
  if (!with_settings) return text;
  for (const PasteSetting& setting : answer.settings) {
    text += fmt::format("\n{}{}", wrapped("", fmt::format("{}: {}", setting.tool, setting.setting)), wrapped("  ", setting.note));
  }
  return text;
}

std::string configuration_in_text(const StepConfiguration& configuration) {
  const ModelDescription& model = configuration.model;
  std::string title = name_of(model);
  if (model.tensors && model.gradient_bytes)
    title += fmt::format(": {} tensors, {} of gradients", *model.tensors, format_bytes(*model.gradient_bytes));
  if (configuration.strategies.empty()) {
    return fmt::format("{}\n{} (skipping this config): {}\n", title, configuration.status, configuration.reason.value_or(""));
  }
  const std::vector<StrategyRow>& rows = configuration.strategies;
  const std::string tables = as_wide_as_the_terminal([&rows](unsigned shown) {
    const std::string first = terminal_table(strategy_table(rows, shown));
    return shown == kWideTable ? first : first + "\n" + terminal_table(strategy_table(rows, kSecondTable));
  });
  return fmt::format("{}\n{}{}", title, tables, advice_on(rows));
}

std::string results_in_text(const Results& results, bool with_settings) {
  const std::string heading = wrapped("", put_in_words(results).heading);  // stands first and last, for either may have left the screen
  std::string text;
  const auto add = [&text](const std::string& part) { text += (text.empty() ? "" : "\n") + part; };
  if (results.answer) {
    add(answer_in_text(results, with_settings));
    const bool compared = std::ranges::find(results.strategies, "naive", &StrategyRow::strategy) != results.strategies.end();
    if (compared || results.strategies.empty()) add(curve_in_text(results));
    if (!results.strategies.empty()) add(fitted(strategy_table, results.strategies));
    text += range_in_text(results.curve);
    add(heading);
    return text;
  }
  if (results.prediction) {
    for (const std::string& table : all_fitted(prediction_tables, *results.prediction, captioned_in_text)) add(table);
  }
  if (!results.curve.empty()) add(curve_in_text(results) + range_in_text(results.curve));
  if (!results.strategies.empty()) add(fitted(strategy_table, results.strategies));
  for (const StepConfiguration& configuration : results.configurations) add(configuration_in_text(configuration));
  const auto without_caption = [](const Table& table) { return terminal_table(table); };
  for (const std::string& table : all_fitted(section_tables, results, without_caption)) add(table);
  if (!results.allreduce.empty() && text.empty()) add(fitted(allreduce_table, results.allreduce));
  if (results.comparison) add(comparison_in_text(*results.comparison));
  const bool has_tables = !text.empty();
  add(answer_in_text(results, with_settings));
  return has_tables ? heading + "\n" + text : text;
}

}  // namespace firkin
