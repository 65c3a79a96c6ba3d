#include "results/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/stats/estimates.h"

namespace firkin {

// ---- What a run measured, setting by setting.

namespace {

// One setting as one run saw it.
struct MeasuredSetting {
  std::string configuration;  // "demo, batch 4, sequence 128, float32", or empty where a run has only one
  std::string name;           // "bucketed 25 MiB"
  double median_s = 0;
  std::vector<double> samples_s = {};  // in the order measured; empty where the run kept none
};

using Samples = std::vector<std::vector<double>>;

// `samples`: one series a setting, or none when the run kept none.
void add_samples(std::span<MeasuredSetting> settings, const Samples& samples) {
  if (samples.empty()) return;
  if (samples.size() != settings.size()) {
    throw InputError(fmt::format("results: samples of {} settings; expected {}, one per setting", samples.size(), settings.size()));
  }
  for (size_t i = 0; i < settings.size(); ++i) settings[i].samples_s = samples[i];
}

std::vector<MeasuredSetting> settings_of_tune(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const StrategyRow& row : run.strategies) settings.push_back({"", exact_setting_name(row), row.measured_s});
  for (const CurveRow& row : run.curve) settings.push_back({"", fmt::format("cap {:.6g} MiB", row.cap_mib), row.measured_s.value_or(0)});
  if (!run.step_samples) return settings;
  const StepSamples& samples = *run.step_samples;
  if (samples.step_s.size() != run.strategies.size()) {
    add_samples(settings, samples.step_s);
    return settings;
  }
  add_samples(std::span(settings).first(run.strategies.size()), samples.step_s);
  add_samples(std::span(settings).subspan(run.strategies.size()), samples.race_step_s);  // caps, in blocks of their own
  return settings;
}

std::vector<MeasuredSetting> settings_of_step_bench(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const StepConfiguration& configuration : run.configurations) {
    const size_t first = settings.size();
    for (const StrategyRow& row : configuration.strategies) {
      settings.push_back({name_of(configuration.model), exact_setting_name(row), row.measured_s});
    }
    add_samples(std::span(settings).subspan(first), configuration.samples.step_s);
  }
  return settings;
}

std::vector<MeasuredSetting> settings_of_allreduce(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const AllReduceRow& row : run.allreduce) {
    const std::string size = format_bytes(row.bytes);
    settings.push_back(
        {fmt::format("{} ranks", row.world_size), row.bytes < kKiB ? size : fmt::format("{} ({} B)", size, row.bytes), row.median_s});
  }
  if (run.allreduce_samples) add_samples(settings, run.allreduce_samples->isolated_s);
  return settings;
}

std::vector<MeasuredSetting> settings_of(const Results& results) {
  const std::string& command = results.run.command;
  if (command == "tune") return settings_of_tune(results);
  if (command == "bench-step") return settings_of_step_bench(results);
  if (command == "bench-allreduce") return settings_of_allreduce(results);
  throw InputError(fmt::format("results of \"{}\"; expected those of tune, bench-step or bench-allreduce", command));
}

// The settings in the file's order. Throws InputError if one appears twice.
std::vector<MeasuredSetting> measured_settings(const Results& results, const std::filesystem::path& file) {
  try {
    std::vector<MeasuredSetting> settings = settings_of(results);
    if (settings.empty() && results.configurations.empty())
      throw InputError(fmt::format("results of {}: no settings; expected at least one that was measured", results.run.command));
    std::set<std::pair<std::string, std::string>> seen;
    for (const MeasuredSetting& setting : settings) {
      if (seen.emplace(setting.configuration, setting.name).second) continue;
      throw InputError(fmt::format("results: '{}' appears twice; expected every setting once", setting.name));
    }
    return settings;
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", file.string(), error.what()));
  }
}

// ---- Two runs.

Verdict verdict_of(const Interval& ratio) {
  if (std::isinf(ratio.high)) return Verdict::kUnknown;  // fewer than kFewestSamples
  if (ratio.high < 1) return Verdict::kFaster;
  if (ratio.low > 1) return Verdict::kSlower;
  return Verdict::kSame;
}

std::optional<Interval> interval_of(const MeasuredSetting& setting) {
  return setting.samples_s.empty() ? std::nullopt : std::optional(series_interval(setting.samples_s));
}

ComparedSetting compare_setting(const MeasuredSetting& a, const MeasuredSetting& b) {
  ComparedSetting both{.configuration = a.configuration,
                       .name = a.name,
                       .a_s = a.median_s,
                       .b_s = b.median_s,
                       .a_interval = interval_of(a),
                       .b_interval = interval_of(b),
                       .ratio = b.median_s / a.median_s};
  if (!both.a_interval || !both.b_interval) return both;
  const PairedRatio ratio = unpaired_ratio(b.samples_s, a.samples_s);
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

void compare_facts(const Facts& a, const Facts& b, Comparison& comparison) {
  std::map<std::string, std::string> of_a(a.begin(), a.end()), of_b(b.begin(), b.end());
  for (const auto& [name, value] : a) {
    if (value == of_b[name]) {
      comparison.same_facts.emplace_back(name, value);
    } else {
      comparison.different_facts.push_back({name, value, of_b[name]});
    }
  }
  for (const auto& [name, value] : b) {
    if (of_a[name].empty()) comparison.different_facts.push_back({name, "", value});
  }
}

}  // namespace

Comparison compare_files(const std::filesystem::path& a_file, const std::filesystem::path& b_file) {
  const Results a = read_results(a_file), b = read_results(b_file);
  const std::vector<MeasuredSetting> settings_a = measured_settings(a, a_file), settings_b = measured_settings(b, b_file);
  Comparison comparison{.command = a.run.command, .a_file = a_file.string(), .b_file = b_file.string()};
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

// ---- As a section of results.json, and as tables.

namespace {

// In the order of Verdict.
constexpr std::array kVerdictNames = {"faster", "slower", "same", "unknown"};

Verdict verdict_named(const std::string& name) {
  const auto found = std::ranges::find(kVerdictNames, name);
  return found == kVerdictNames.end() ? Verdict::kUnknown : static_cast<Verdict>(found - kVerdictNames.begin());
}

}  // namespace

template <>
constexpr auto kFields<ComparedSetting> = std::tuple(
    Field("configuration", &ComparedSetting::configuration, kHidden), Field("setting", &ComparedSetting::name),
    Field("a_s", &ComparedSetting::a_s, Unit::kSeconds, "A"), Field("a_ci_s", &ComparedSetting::a_interval, Unit::kSeconds, kPage),
    Field("b_s", &ComparedSetting::b_s, Unit::kSeconds, "B"), Field("b_ci_s", &ComparedSetting::b_interval, Unit::kSeconds, kPage),
    Field("ratio", &ComparedSetting::ratio, Unit::kRatio, "B/A"), Field("ratio_ci", &ComparedSetting::ratio_interval, Unit::kRatio),
    Field(
        "verdict", +[](const ComparedSetting& row) { return std::string(kVerdictNames[static_cast<size_t>(row.verdict)]); },
        +[](ComparedSetting& row, const std::string& name) { row.verdict = verdict_named(name); }, "B is"));

template <>
constexpr auto kFields<DifferentFact> = std::tuple(Field("name", &DifferentFact::name, ""), Field("a", &DifferentFact::a, "A"),
                                                   Field("b", &DifferentFact::b, "B"));

template <>
constexpr auto kFields<Comparison> = std::tuple(Field("compared", &Comparison::command), Field("a_file", &Comparison::a_file),
                                                Field("b_file", &Comparison::b_file), Field("only_a", &Comparison::only_a),
                                                Field("only_b", &Comparison::only_b),
                                                Field("different", &Comparison::different_facts, kRequired),
                                                Field("settings", &Comparison::settings, kRequired));

void write_object(const Comparison& comparison, nlohmann::json& object) {
  write_object<>(comparison, object);
  object["same"] = nlohmann::json::object();
  for (const auto& [name, value] : comparison.same_facts) object["same"][name] = value;
}

void read_object(const JsonFields& fields, Comparison& comparison) {
  read_object<>(fields, comparison);
  const JsonFields same = fields.object("same");
  for (const auto& [name, value] : same.whole().items())
    comparison.same_facts.emplace_back(name, value_from_json<std::string>(value, same.path_of(name)));
}

std::vector<Comparison> by_configuration(const Comparison& comparison) {
  std::vector<Comparison> parts;
  for (const ComparedSetting& setting : comparison.settings) {
    if (parts.empty() || parts.back().settings[0].configuration != setting.configuration) parts.emplace_back();
    parts.back().settings.push_back(setting);
  }
  return parts;
}

Table comparison_table(const Comparison& comparison, unsigned shown) {
  const std::string name = comparison.settings.empty() ? "" : comparison.settings[0].configuration;
  return table_of(comparison.settings, shown, name.empty() ? "Setting by setting" : name);
}

Table difference_table(const Comparison& comparison) {
  std::vector<DifferentFact> facts = {{"file", comparison.a_file, comparison.b_file}};
  facts.insert(facts.end(), comparison.different_facts.begin(), comparison.different_facts.end());
  return table_of(facts, kPage, "What is known to differ between the runs");
}

std::vector<std::string> reading_aid(const Comparison& comparison) {
  std::vector<std::string> texts;
  if (const auto count = std::ranges::count(comparison.settings, Verdict::kUnknown, &ComparedSetting::verdict)) {
    texts.push_back(fmt::format("{} with too few samples in one of the runs: no verdict.", count));
  }
  texts.push_back(
      "same: the interval of B/A contains 1, so the two cannot be told apart. Among 20 settings that are the same, one is called different "
      "by chance.");
  texts.push_back(
      "Runs at different times can differ by more than these intervals, which describe only these two runs. To compare settings, put "
      "them into one run, which interleaves them.");
  return texts;
}

}  // namespace firkin
