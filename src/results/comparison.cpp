#include "results/comparison.h"
#include "results/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/error.h"
#include "firkin/stats/unpaired.h"

namespace firkin {
namespace {

Verdict verdict_of(const Interval& ratio) {
  if (std::isinf(ratio.high)) return Verdict::kUnknown;  // fewer than kFewestSamples
  if (ratio.high < 1) return Verdict::kFaster;
  if (ratio.low > 1) return Verdict::kSlower;
  return Verdict::kSame;
}

ComparedSetting compare_setting(const MeasuredSetting& a, const MeasuredSetting& b) {
  ComparedSetting both{
      .a = a, .b = b, .ratio = b.median_s / a.median_s, .ratio_interval = {}, .evidence = std::max(a.evidence, b.evidence)};
  if (both.evidence == Evidence::kNone) return both;
  const PairedRatio ratio = both.evidence == Evidence::kSamples ? unpaired_ratio(b.samples_s, a.samples_s)
                                                                : ratio_of_stated({b.median_s, *b.interval}, {a.median_s, *a.interval});
  both.ratio = ratio.ratio;
  both.ratio_interval = ratio.interval;
  both.verdict = verdict_of(ratio.interval);
  return both;
}

const MeasuredSetting* find_setting(const std::vector<MeasuredSetting>& settings, const MeasuredSetting& wanted) {
  const auto found = std::ranges::find_if(settings, [&](const MeasuredSetting& setting) {
    return setting.configuration == wanted.configuration && setting.name == wanted.name;
  });
  return found == settings.end() ? nullptr : &*found;
}

std::vector<std::string> missing_from(const std::vector<MeasuredSetting>& settings, const std::vector<MeasuredSetting>& others) {
  std::vector<std::string> missing;
  for (const MeasuredSetting& setting : settings) {
    if (find_setting(others, setting)) continue;
    missing.push_back(setting.configuration.empty() ? setting.name : fmt::format("{}: {}", setting.configuration, setting.name));
  }
  return missing;
}

// Whether each configuration of bench step was measured, and if not, why.
Facts configuration_statuses(const Results& results) {
  Facts facts;
  for (const StepConfiguration& configuration : results.configurations)
    facts.emplace_back(name_of(configuration.model), configuration.status);
  return facts;
}

// What there is to know about a run, apart from its times.
Facts facts_of(const RunHead& run) {
  Facts facts = facts_of(run.environment);
  if (run.seed) facts.emplace_back("seed", fmt::format("{}", *run.seed));
  for (const auto& [name, value] : run.model ? facts_of(*run.model) : Facts()) facts.emplace_back(name == "name" ? "model" : name, value);
  facts.emplace_back("command line", fmt::format("{}", fmt::join(run.command_line, " ")));
  facts.emplace_back("started", run.started);
  return facts;
}

std::string value_of(const Facts& facts, const std::string& name) {
  const auto found = std::ranges::find(facts, name, &Facts::value_type::first);
  return found == facts.end() ? "" : found->second;
}

void compare_facts(const Facts& a, const Facts& b, Comparison& comparison) {
  for (const auto& [name, value] : a) {
    const std::string other = value_of(b, name);
    if (value == other) {
      comparison.same_facts.emplace_back(name, value);
    } else {
      comparison.different_facts.push_back({name, value, other});
    }
  }
  for (const auto& [name, value] : b) {
    if (value_of(a, name).empty()) comparison.different_facts.push_back({name, "", value});
  }
}

}  // namespace

Comparison compare_results(const Results& a, const Results& b) {
  const std::vector<MeasuredSetting> settings_a = measured_settings(a);
  const std::vector<MeasuredSetting> settings_b = measured_settings(b);
  Comparison comparison;
  comparison.command = a.run.command;
  if (b.run.command != comparison.command) {
    throw InputError(fmt::format("a {} and a {}; expected two results of one subcommand", comparison.command, b.run.command));
  }
  compare_facts(facts_of(a.run), facts_of(b.run), comparison);
  compare_facts(configuration_statuses(a), configuration_statuses(b), comparison);
  std::erase_if(comparison.same_facts, [](const auto& fact) { return fact.second == "measured"; });
  for (const MeasuredSetting& setting : settings_a) {
    if (const MeasuredSetting* other = find_setting(settings_b, setting)) {
      comparison.settings.push_back(compare_setting(setting, *other));
    }
  }
  comparison.only_a = missing_from(settings_a, settings_b);
  comparison.only_b = missing_from(settings_b, settings_a);
  return comparison;
}

}  // namespace firkin
