#include "measured_settings.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "report/comparison.h"

namespace firkin {
namespace {

using nlohmann::json;
using Samples = std::vector<std::vector<double>>;

constexpr uint64_t kSeed = 0;                         // of the interval of one run
constexpr double kNormal95 = 1.959963984540054;       // a normal variable is within this many deviations in 95 %
constexpr double kMedianToMean = 1.2533141373155003;  // standard error of the median over that of the mean, for normal samples

std::optional<Interval> stated_interval(const JsonFields& row, const std::string& name) {
  const auto fields = row.maybe_object(name);
  if (!fields) return std::nullopt;
  const auto low = fields->maybe_positive("low");
  const auto high = fields->maybe_positive("high");
  if (!low || !high) return std::nullopt;  // an unbounded one: too few samples
  const double median_s = row.positive(name == "median_ci_s" ? "median_s" : "measured_s");
  if (!(*low <= median_s && median_s <= *high)) row.fail(name, "does not hold the median", "low <= median <= high");
  return Interval{*low, *high};
}

// `samples`: {key: [setting][sample]}, or nothing when the run kept none.
Samples samples_of(const JsonFields& run, const char* key, size_t settings) {
  const auto fields = run.maybe_object("samples");
  if (!fields || !fields->has(key)) return {};
  const json& table = fields->whole().at(key);
  Samples samples;
  for (size_t i = 0; table.is_array() && i < table.size(); ++i) {
    const json row = {{key, table[i]}};
    samples.push_back(JsonFields(row, fmt::format("samples[{}]", i)).maybe_positives(key));
  }
  if (samples.size() != settings) fields->fail(key, fmt::format("{} rows", samples.size()), fmt::format("{}, one a setting", settings));
  return samples;
}

void add_samples(MeasuredSetting& setting, std::vector<double> samples) {
  if (samples.empty()) return;
  setting.interval = bootstrap_median(samples, kSeed);
  setting.evidence = Evidence::kSamples;
  setting.samples_s = std::move(samples);
}

// A row of a table of step times.
MeasuredSetting step_setting(const JsonFields& row, std::string configuration, std::string name) {
  MeasuredSetting setting;
  setting.configuration = std::move(configuration);
  setting.name = std::move(name);
  setting.median_s = row.positive("measured_s");
  setting.interval = stated_interval(row, "measured_ci_s");
  if (setting.interval) setting.evidence = Evidence::kStatedInterval;
  return setting;
}

std::string strategy_name(const JsonFields& row) {
  const auto cap_mib = row.maybe_positive("cap_mib");
  return cap_mib ? fmt::format("{} {:.6g} MiB", row.text("strategy"), *cap_mib) : row.text("strategy");
}

std::vector<MeasuredSetting> tune_settings(const JsonFields& run) {
  std::vector<MeasuredSetting> settings;
  for (const JsonFields& row : run.objects("strategies")) settings.push_back(step_setting(row, "", strategy_name(row)));
  for (const JsonFields& row : run.objects("curve")) {
    settings.push_back(step_setting(row, "", fmt::format("cap {:.6g} MiB", row.positive("cap_mib"))));
  }
  Samples samples = samples_of(run, "step_s", settings.size());
  for (size_t i = 0; i < samples.size(); ++i) add_samples(settings[i], std::move(samples[i]));
  return settings;
}

std::vector<MeasuredSetting> step_bench_settings(const JsonFields& run) {
  std::vector<MeasuredSetting> settings;
  for (const JsonFields& configuration : run.objects("configurations")) {
    const std::string name = configuration_name(configuration.object("model"));
    const size_t first = settings.size();
    for (const JsonFields& row : configuration.maybe_objects("strategies")) {
      settings.push_back(step_setting(row, name, strategy_name(row)));
    }
    Samples samples = samples_of(configuration, "step_s", settings.size() - first);
    for (size_t i = 0; i < samples.size(); ++i) add_samples(settings[first + i], std::move(samples[i]));
  }
  return settings;
}

MeasuredSetting allreduce_setting(const JsonFields& row) {
  MeasuredSetting setting;
  const int64_t bytes = row.integer("bytes");
  if (bytes <= 0) row.fail("bytes", fmt::format("{}", bytes), "a positive number of bytes");
  setting.configuration = fmt::format("{} ranks", row.integer("world_size"));
  setting.name = fmt::format("{} ({} B)", format_bytes(bytes), bytes);
  if (bytes < kKiB) setting.name = format_bytes(bytes);
  setting.median_s = row.positive("median_s");
  const auto stdev_s = row.maybe_number("stdev_s");
  const int64_t count = row.maybe_integer("samples").value_or(0);
  if (stdev_s && *stdev_s >= 0 && count > 1) {
    const double error = kMedianToMean * *stdev_s / std::sqrt(static_cast<double>(count)) / setting.median_s;
    setting.interval = Interval{setting.median_s * std::exp(-kNormal95 * error), setting.median_s * std::exp(kNormal95 * error)};
    setting.evidence = Evidence::kStandardDeviation;
  }
  if (const auto stated = stated_interval(row, "median_ci_s")) {
    setting.interval = stated;
    setting.evidence = Evidence::kStatedInterval;
  }
  return setting;
}

std::vector<MeasuredSetting> allreduce_settings(const JsonFields& run) {
  std::vector<MeasuredSetting> settings;
  for (const JsonFields& row : run.objects("allreduce")) settings.push_back(allreduce_setting(row));
  Samples samples = samples_of(run, "isolated_s", settings.size());
  for (size_t i = 0; i < samples.size(); ++i) add_samples(settings[i], std::move(samples[i]));
  return settings;
}

std::vector<MeasuredSetting> settings_of(const JsonFields& run) {
  const std::string schema = run.text("schema");
  if (!schema.starts_with("firkin.results/")) run.fail("schema", fmt::format("\"{}\"", schema), "\"firkin.results/1\"");
  const std::string command = run.text("command");
  if (command == "tune") return tune_settings(run);
  if (command == "bench-step") return step_bench_settings(run);
  if (command != "bench-allreduce") run.fail("command", fmt::format("\"{}\"", command), "tune, bench-step or bench-allreduce");
  return allreduce_settings(run);
}

}  // namespace

std::string configuration_name(const JsonFields& model) {
  std::string name = model.text("name");
  if (const auto batch = model.maybe_integer("batch_size")) name += fmt::format(", batch {}", *batch);
  if (const auto sequence = model.maybe_integer("sequence_length")) name += fmt::format(", sequence {}", *sequence);
  if (const auto dtype = model.maybe_text("dtype")) name += ", " + *dtype;
  return name;
}

std::vector<MeasuredSetting> measured_settings(const json& results) {
  std::vector<MeasuredSetting> settings = settings_of(JsonFields(results, ""));
  std::set<std::pair<std::string, std::string>> seen;
  for (const MeasuredSetting& setting : settings) {
    if (seen.emplace(setting.configuration, setting.name).second) continue;
    throw InputError(fmt::format("results: '{}' is there twice; expected every setting once", setting.name));
  }
  return settings;
}

}  // namespace firkin
