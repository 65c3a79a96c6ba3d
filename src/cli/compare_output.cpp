#include "compare_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace firkin::cli {
namespace {

constexpr size_t kColumns = 80;
constexpr size_t kNameColumns = 14;

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kFaster:
      return "faster";
    case Verdict::kSlower:
      return "slower";
    case Verdict::kSame:
      return "same";
    case Verdict::kUnknown:
      break;
  }
  return "unknown";
}

const char* evidence_name(Evidence evidence) {
  switch (evidence) {
    case Evidence::kSamples:
      return "samples";
    case Evidence::kStatedInterval:
      return "stated intervals";
    case Evidence::kStandardDeviation:
      return "standard deviations";
    case Evidence::kNone:
      break;
  }
  return "none";
}

// JSON has no infinity: the end of an unbounded interval is null.
nlohmann::json interval_json(const std::optional<Interval>& interval) {
  if (!interval) return nullptr;
  return {{"low", interval->low}, {"high", interval->high}};
}

nlohmann::json setting_json(const ComparedSetting& setting) {
  const auto run_json = [](const MeasuredSetting& run) {
    return nlohmann::json{{"median_s", run.median_s}, {"median_ci_s", interval_json(run.interval)}};
  };
  return {{"configuration", setting.a.configuration},
          {"setting", setting.a.name},
          {"a", run_json(setting.a)},
          {"b", run_json(setting.b)},
          {"ratio", setting.ratio},
          {"ratio_ci", interval_json(setting.ratio_interval)},
          {"evidence", evidence_name(setting.evidence)},
          {"verdict", verdict_name(setting.verdict)}};
}

struct Unit {
  double seconds;
  const char* name;
};

Unit unit_of(double seconds) {
  if (seconds >= 1) return {1, "s"};
  return seconds >= 1e-3 ? Unit{1e-3, "ms"} : Unit{1e-6, "us"};
}

// Three significant digits, without an exponent.
std::string figure(double value) {
  if (!(value > 0) || std::isinf(value)) return value > 0 ? "inf" : "0";
  const int decimals = std::clamp(2 - static_cast<int>(std::floor(std::log10(value))), 0, 3);
  return fmt::format("{:.{}f}", value, decimals);
}

std::string time_text(const MeasuredSetting& run, double unit_s) {
  if (!run.interval) return figure(run.median_s / unit_s);
  return fmt::format("{} {}-{}", figure(run.median_s / unit_s), figure(run.interval->low / unit_s), figure(run.interval->high / unit_s));
}

std::string ratio_text(const ComparedSetting& setting) {
  if (!setting.ratio_interval) return fmt::format("{:.3f}", setting.ratio);
  return fmt::format("{:.3f} {:.3f}-{:.3f}", setting.ratio, setting.ratio_interval->low, setting.ratio_interval->high);
}

std::string setting_line(const ComparedSetting& setting) {
  const Unit unit = unit_of(setting.a.median_s);
  const bool long_name = setting.a.name.size() > kNameColumns;
  return fmt::format("{}{:<{}} {:>2} {:<16} {:<16} {:<18} {}\n", long_name ? setting.a.name + "\n" : "", long_name ? "" : setting.a.name,
                     kNameColumns, unit.name, time_text(setting.a, unit.seconds), time_text(setting.b, unit.seconds), ratio_text(setting),
                     verdict_name(setting.verdict));
}

std::string settings_table(const Comparison& comparison) {
  if (comparison.settings.empty()) return "No setting is in both.\n";
  std::string text = fmt::format("{:<{}} {:>2} {:<16} {:<16} {:<18} {}\n", "setting", kNameColumns, "", "A  95 % interval",
                                 "B  95 % interval", "B/A  95 % interval", "B is");
  std::string configuration;
  for (const ComparedSetting& setting : comparison.settings) {
    if (setting.a.configuration != configuration) text += wrapped("", setting.a.configuration);
    configuration = setting.a.configuration;
    text += setting_line(setting);
  }
  return text;
}

std::string facts_text(const Comparison& comparison) {
  std::string same;
  for (const auto& [name, value] : comparison.same_facts) same += (same.empty() ? "" : "; ") + name + " " + value;
  std::string text = wrapped("In both: ", same.empty() ? "nothing" : same);
  if (comparison.different_facts.empty()) return text + "Nothing known about the runs differs.\n";
  text += "Different:\n";
  for (const DifferentFact& fact : comparison.different_facts) {
    text += wrapped("  ", fact.name);
    text += wrapped("    A  ", fact.a.empty() ? "not stated" : fact.a);
    text += wrapped("    B  ", fact.b.empty() ? "not stated" : fact.b);
  }
  return text;
}

std::string missing_text(const std::string& run, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += wrapped("Only in " + run + ": ", name);
  return text;
}

size_t count_evidence(const Comparison& comparison, Evidence evidence) {
  return static_cast<size_t>(std::ranges::count(comparison.settings, evidence, &ComparedSetting::evidence));
}

std::string reading_aid(const Comparison& comparison) {
  std::string text;
  if (const size_t count = count_evidence(comparison, Evidence::kStatedInterval)) {
    text += wrapped("", fmt::format("{} without raw samples in both: their ratios come from the intervals that the files state.", count));
  }
  if (const size_t count = count_evidence(comparison, Evidence::kStandardDeviation)) {
    text +=
        wrapped("", fmt::format("{} with neither samples nor intervals in both: theirs come from the standard deviations, as if samples "
                                "were independent, and are too narrow where they are not.",
                                count));
  }
  if (const auto count = std::ranges::count(comparison.settings, Verdict::kUnknown, &ComparedSetting::verdict)) {
    text += wrapped("", fmt::format("{} with a median alone or too few blocks: no verdict.", count));
  }
  text += wrapped("",
                  "same: the interval of B/A contains 1, so the two cannot be told apart. Among 20 settings that are the same, one is "
                  "called different by chance.");
  text +=
      wrapped("",
              "Runs at different times can differ by more than these intervals: this says what differs between these two runs. To compare "
              "settings, put them into one run, which interleaves them.");
  return text;
}

}  // namespace

nlohmann::json comparison_json(const Comparison& comparison) {
  nlohmann::json json = {{"schema", "firkin.comparison/1"},      {"command", "compare"},
                         {"compared", comparison.command},       {"same", nlohmann::json::object()},
                         {"different", nlohmann::json::array()}, {"settings", nlohmann::json::array()},
                         {"only_a", comparison.only_a},          {"only_b", comparison.only_b}};
  for (const auto& [name, value] : comparison.same_facts) json["same"][name] = value;
  for (const DifferentFact& fact : comparison.different_facts) {
    json["different"].push_back({{"name", fact.name}, {"a", fact.a}, {"b", fact.b}});
  }
  for (const ComparedSetting& setting : comparison.settings) json["settings"].push_back(setting_json(setting));
  return json;
}

std::string comparison_text(const Comparison& comparison) {
  std::string text = facts_text(comparison) + "\n" + settings_table(comparison);
  const std::string missing = missing_text("A", comparison.only_a) + missing_text("B", comparison.only_b);
  if (!missing.empty()) text += "\n" + missing;
  return text + "\n" + reading_aid(comparison);
}

}  // namespace firkin::cli
