#include "results/comparison_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "results/run.h"

namespace firkin {
namespace {

using nlohmann::json;

constexpr std::array kEvidenceNames = {"samples", "stated intervals", "standard deviations", "none"};  // in the order of Evidence
constexpr std::array kVerdictNames = {"faster", "slower", "same", "unknown"};                          // in the order of Verdict

// A setting as its row in JSON and tables.
struct ComparedRow {
  std::string configuration, setting;
  double a_s = 0, b_s = 0;
  std::optional<Interval> a_ci_s, b_ci_s;
  double ratio = 1;
  std::optional<Interval> ratio_ci;
  std::string evidence, verdict;
};

constexpr Field<ComparedRow> kComparedFields[] = {{"configuration", &ComparedRow::configuration, Unit::kText, "configuration", kHidden},
                                                  {"setting", &ComparedRow::setting, Unit::kText, "setting"},
                                                  {"a_s", &ComparedRow::a_s, Unit::kSeconds, "A"},
                                                  {"a_ci_s", &ComparedRow::a_ci_s, Unit::kSeconds, "95 % interval", kPage},
                                                  {"b_s", &ComparedRow::b_s, Unit::kSeconds, "B"},
                                                  {"b_ci_s", &ComparedRow::b_ci_s, Unit::kSeconds, "95 % interval", kPage},
                                                  {kRatioKey, &ComparedRow::ratio, Unit::kRatio, "B/A"},
                                                  {kRatioIntervalKey, &ComparedRow::ratio_ci, Unit::kRatio, "95 % interval"},
                                                  {"evidence", &ComparedRow::evidence, Unit::kText, "from", kPage},
                                                  {"verdict", &ComparedRow::verdict, Unit::kText, "B is"}};

constexpr Field<DifferentFact> kFactFields[] = {{kNameKey, &DifferentFact::name, Unit::kText, ""},
                                                {"a", &DifferentFact::a, Unit::kText, "A"},
                                                {"b", &DifferentFact::b, Unit::kText, "B"}};

constexpr Field<Comparison> kComparisonFields[] = {{"compared", &Comparison::command},
                                                   {"a_file", &Comparison::a_file},
                                                   {"b_file", &Comparison::b_file},
                                                   {"only_a", &Comparison::only_a},
                                                   {"only_b", &Comparison::only_b}};

ComparedRow row_of(const ComparedSetting& setting) {
  return {.configuration = setting.a.configuration,
          .setting = setting.a.name,
          .a_s = setting.a.median_s,
          .b_s = setting.b.median_s,
          .a_ci_s = setting.a.interval,
          .b_ci_s = setting.b.interval,
          .ratio = setting.ratio,
          .ratio_ci = setting.ratio_interval,
          .evidence = kEvidenceNames[static_cast<size_t>(setting.evidence)],
          .verdict = kVerdictNames[static_cast<size_t>(setting.verdict)]};
}

template <class Enum, size_t count>
Enum named(const std::array<const char*, count>& names, const std::string& name, Enum otherwise) {
  const auto found = std::ranges::find(names, name);
  return found == names.end() ? otherwise : static_cast<Enum>(found - names.begin());
}

ComparedSetting setting_of(const ComparedRow& row) {
  const auto evidence = named(kEvidenceNames, row.evidence, Evidence::kNone);
  const auto of_run = [&](double median_s, const std::optional<Interval>& interval) {
    return MeasuredSetting{row.configuration, row.setting, median_s, interval, evidence, {}};
  };
  return {.a = of_run(row.a_s, row.a_ci_s),
          .b = of_run(row.b_s, row.b_ci_s),
          .ratio = row.ratio,
          .ratio_interval = row.ratio_ci,
          .evidence = evidence,
          .verdict = named(kVerdictNames, row.verdict, Verdict::kUnknown)};
}

std::vector<ComparedRow> rows_of(const Comparison& comparison) {
  std::vector<ComparedRow> rows;
  for (const ComparedSetting& setting : comparison.settings) rows.push_back(row_of(setting));
  return rows;
}

int64_t count_of(const Comparison& comparison, Evidence evidence) {
  return std::ranges::count(comparison.settings, evidence, &ComparedSetting::evidence);
}

}  // namespace

json comparison_json(const Comparison& comparison) {
  json object = to_json<Comparison>(kComparisonFields, comparison);
  object["same"] = json::object();
  for (const auto& [name, value] : comparison.same_facts) object["same"][name] = value;
  object["different"] = rows_to_json<DifferentFact>(kFactFields, comparison.different_facts);
  object[kSettingsKey] = rows_to_json<ComparedRow>(kComparedFields, rows_of(comparison));
  return object;
}

Comparison read_comparison(const JsonFields& fields) {
  Comparison comparison = from_json<Comparison>(kComparisonFields, fields);
  const JsonFields same = fields.object("same");
  for (const auto& [name, value] : same.whole().items()) comparison.same_facts.emplace_back(name, same.text(name));
  comparison.different_facts = rows_from_json<DifferentFact>(kFactFields, fields.objects("different"));
  for (const ComparedRow& row : rows_from_json<ComparedRow>(kComparedFields, fields.objects(kSettingsKey)))
    comparison.settings.push_back(setting_of(row));
  return comparison;
}

std::vector<Comparison> by_configuration(const Comparison& comparison) {
  std::vector<Comparison> parts;
  for (const ComparedSetting& setting : comparison.settings) {
    if (parts.empty() || parts.back().settings[0].a.configuration != setting.a.configuration) parts.emplace_back();
    parts.back().settings.push_back(setting);
  }
  return parts;
}

Table comparison_table(const Comparison& comparison, Medium medium) {
  const std::vector<ComparedRow> rows = rows_of(comparison);
  const bool named = !rows.empty() && !rows[0].configuration.empty();
  return table_of<ComparedRow>(kComparedFields, rows, medium, named ? rows[0].configuration.c_str() : "Setting by setting");
}

Table difference_table(const Comparison& comparison) {
  std::vector<DifferentFact> facts = {{"file", comparison.a_file, comparison.b_file}};
  facts.insert(facts.end(), comparison.different_facts.begin(), comparison.different_facts.end());
  return table_of<DifferentFact>(kFactFields, facts, Medium::kPage, "What is known to differ between the runs");
}

std::vector<std::string> reading_aid(const Comparison& comparison) {
  std::vector<std::string> texts;
  if (const auto count = count_of(comparison, Evidence::kStatedInterval)) {
    texts.push_back(fmt::format("{} without raw samples in both: their ratios come from the intervals that the files state.", count));
  }
  if (const auto count = count_of(comparison, Evidence::kStandardDeviation)) {
    texts.push_back(
        fmt::format("{} with neither samples nor intervals in both: theirs come from the standard deviations, as if samples "
                    "were independent, and are too narrow where they are not.",
                    count));
  }
  if (const auto count = std::ranges::count(comparison.settings, Verdict::kUnknown, &ComparedSetting::verdict)) {
    texts.push_back(fmt::format("{} with a median alone or too few blocks: no verdict.", count));
  }
  texts.push_back(
      "same: the interval of B/A contains 1, so the two cannot be told apart. Among 20 settings that are the same, one is called different "
      "by chance.");
  texts.push_back(
      "Runs at different times can differ by more than these intervals: this says what differs between these two runs. To compare "
      "settings, "
      "put them into one run, which interleaves them.");
  return texts;
}

}  // namespace firkin
