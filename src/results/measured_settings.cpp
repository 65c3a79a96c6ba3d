#include <fmt/format.h>

#include <cmath>
#include <set>
#include <span>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "results/comparison.h"
#include "results/results.h"

namespace firkin {
namespace {

using Samples = std::vector<std::vector<double>>;

constexpr double kNormal95 = 1.959963984540054;       // a normal variable is within this many deviations in 95 %
constexpr double kMedianToMean = 1.2533141373155003;  // standard error of the median over that of the mean, for normal samples

// An interval that a file states must hold its median.
void check_interval(const MeasuredSetting& setting) {
  if (!setting.interval || (setting.interval->low <= setting.median_s && setting.median_s <= setting.interval->high)) return;
  throw InputError(fmt::format("results: '{}': the interval {} to {} s does not hold the median {} s; expected low <= median <= high",
                               setting.name, setting.interval->low, setting.interval->high, setting.median_s));
}

// `samples`: one series a setting, or none when the run kept none.
void add_samples(std::span<MeasuredSetting> settings, const Samples& samples) {
  if (samples.empty()) return;
  if (samples.size() != settings.size()) {
    throw InputError(fmt::format("results: samples of {} settings; expected {}, one a setting", samples.size(), settings.size()));
  }
  for (size_t i = 0; i < settings.size(); ++i) {
    if (samples[i].empty()) continue;
    settings[i].interval = series_interval(samples[i]);
    settings[i].evidence = Evidence::kSamples;
    settings[i].samples_s = samples[i];
  }
}

MeasuredSetting step_setting(std::string configuration, std::string name, double measured_s, const std::optional<Interval>& interval) {
  MeasuredSetting setting{.configuration = std::move(configuration),
                          .name = std::move(name),
                          .median_s = measured_s,
                          .interval = interval,
                          .evidence = interval ? Evidence::kStatedInterval : Evidence::kNone,
                          .samples_s = {}};
  check_interval(setting);
  return setting;
}

MeasuredSetting strategy_setting(const std::string& configuration, const StrategyRow& row) {
  const std::string name = row.cap_mib ? fmt::format("{} {:.6g} MiB", row.strategy, *row.cap_mib) : row.strategy;
  return step_setting(configuration, name, row.measured_s, row.measured_ci_s);
}

std::vector<MeasuredSetting> settings_of_tune(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const StrategyRow& row : run.strategies) settings.push_back(strategy_setting("", row));
  for (const CurveRow& row : run.curve) {
    settings.push_back(step_setting("", fmt::format("cap {:.6g} MiB", row.cap_mib), row.measured_s.value_or(0), row.measured_ci_s));
  }
  if (!run.step_samples) return settings;
  const Samples& samples = run.step_samples->step_s;
  const bool of_strategies = samples.size() == run.strategies.size();  // the caps of the curve were raced in other blocks
  add_samples(of_strategies ? std::span(settings).first(samples.size()) : std::span(settings), samples);
  return settings;
}

std::vector<MeasuredSetting> settings_of_step_bench(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const StepConfiguration& configuration : run.configurations) {
    const size_t first = settings.size();
    for (const StrategyRow& row : configuration.strategies) settings.push_back(strategy_setting(name_of(configuration.model), row));
    add_samples(std::span(settings).subspan(first), configuration.samples.step_s);
  }
  return settings;
}

MeasuredSetting allreduce_setting(const AllReduceRow& row) {
  MeasuredSetting setting;
  setting.configuration = fmt::format("{} ranks", row.world_size);
  setting.name = row.bytes < kKiB ? format_bytes(row.bytes) : fmt::format("{} ({} B)", format_bytes(row.bytes), row.bytes);
  setting.median_s = row.median_s;
  const int64_t count = row.samples.value_or(0);
  if (row.stdev_s && *row.stdev_s >= 0 && count > 1) {
    const double error = kMedianToMean * *row.stdev_s / std::sqrt(static_cast<double>(count)) / setting.median_s;
    setting.interval = Interval{setting.median_s * std::exp(-kNormal95 * error), setting.median_s * std::exp(kNormal95 * error)};
    setting.evidence = Evidence::kStandardDeviation;
  }
  return setting;
}

std::vector<MeasuredSetting> settings_of_allreduce(const Results& run) {
  std::vector<MeasuredSetting> settings;
  for (const AllReduceRow& row : run.allreduce) settings.push_back(allreduce_setting(row));
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

}  // namespace

std::vector<MeasuredSetting> measured_settings(const Results& results) {
  std::vector<MeasuredSetting> settings = settings_of(results);
  if (settings.empty() && results.configurations.empty())
    throw InputError(fmt::format("results of {}: no settings; expected at least one that was measured", results.run.command));
  std::set<std::pair<std::string, std::string>> seen;
  for (const MeasuredSetting& setting : settings) {
    if (seen.emplace(setting.configuration, setting.name).second) continue;
    throw InputError(fmt::format("results: '{}' is there twice; expected every setting once", setting.name));
  }
  return settings;
}

}  // namespace firkin
