// What is made for and from results: their sections from a tuning, and settings for other tools.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "results/field.h"
#include "results/results.h"

namespace firkin {
namespace {

CurveRow predicted_row(const PredictedCap& cap) {
  return {
      .cap_bytes = cap.cap_bytes, .buckets = cap.buckets, .predicted_s = cap.time_s, .predicted_range_s = Interval{cap.low_s, cap.high_s}};
}

// Sets a row's ratio to another setting of the same blocks; not to itself.
void add_ratio(const SettingSteps& steps, const SettingSteps& other, std::optional<double>& ratio, std::optional<Interval>& interval) {
  if (&steps == &other) return;
  const PairedRatio paired = paired_ratio(steps.step_s, other.step_s);
  ratio = paired.ratio;
  interval = paired.interval;
}

// chosen, by_default: settings that ran in the same blocks as `steps`, or null.
std::vector<CurveRow> curve_rows(std::span<const PredictedCap> caps, std::span<const SettingFit> fit, std::span<const SettingSteps> steps,
                                 const SettingSteps* chosen, const SettingSteps* by_default) {
  std::vector<CurveRow> rows;
  for (size_t i = 0; i < caps.size(); ++i) {
    CurveRow& row = rows.emplace_back(predicted_row(caps[i]));
    row.measured_s = fit[i].median;
    row.measured_ci_s = fit[i].interval;
    row.error = caps[i].time_s / fit[i].median - 1;
    if (chosen != nullptr) add_ratio(steps[i], *chosen, row.ratio_to_chosen, row.ratio_to_chosen_ci);
    if (by_default != nullptr) add_ratio(steps[i], *by_default, row.ratio_to_default, row.ratio_to_default_ci);
  }
  return rows;
}

// Adds the settings of `gain` that are no caps of the curve.
void add_strategies(const Tuning& tuning, const BlockFit& fit, Results& results) {
  const SettingSteps* by_default = find_setting(tuning, SettingKind::kTorchDefault);
  for (size_t i = 0; i < tuning.gain.size() - tuning.compared.size(); ++i) {
    const SettingSteps& setting = tuning.gain[i];
    StrategyRow row{.strategy = setting.name, .buckets = setting.buckets, .measured_s = fit[i].median, .measured_ci_s = fit[i].interval};
    row.predicted_s = predicted_step_s(tuning, tuning.gain_settings[i].kind);
    row.exposed_s = fit[0].median * (paired_ratio(setting.step_s, tuning.gain[0].step_s).ratio - 1);
    if (!setting.comm_s.empty()) row.comm_s = median(setting.comm_s);
    if (by_default != nullptr) add_ratio(setting, *by_default, row.ratio_to_default, row.ratio_to_default_ci);
    results.strategies.push_back(row);
  }
}

PairedRatio gain_over(const SettingSteps& setting, const SettingSteps& other) {
  return paired_ratio(setting.step_s, other.step_s);
}

// The best of the curve's caps, predicted and measured, and those that cannot be told apart from it; and the decision.
void add_answer(const Tuning& tuning, const BlockFit& fit, Results& results) {
  const bool compares = !tuning.compared.empty();
  const IndifferenceSet measured = indifference_set(series_of(compares ? compared_settings(tuning) : tuning.race));
  const size_t predicted = weigh(compares ? tuning.compared : tuning.raced).choice;
  results.best_predicted = results.curve[predicted];
  results.best_measured = results.curve[measured.best];
  for (const size_t i : measured.members) results.indifference_set.push_back(results.curve[i].cap_bytes);
  // Noise can make the paired ratio come out below 1; nothing is lost then.
  results.regret = std::max(0.0, measured.to_best[predicted].ratio - 1);
  const SettingSteps& chosen = chosen_setting(tuning);
  results.decision = tuning.decision;
  results.decision->measured_s = fit[static_cast<size_t>(&chosen - tuning.gain.data())].median;
  results.decision->recommended = tuning.gain[recommended_setting(tuning)].name;
  results.over_default = tuning.decision.over_default;
  if (const SettingSteps* ordered = find_setting(tuning, SettingKind::kOrdered))
    results.ordered_over_best_cap = gain_over(*ordered, chosen);
  results.sharded = tuning.sharded;
  if (const SettingSteps* sharded = find_setting(tuning, SettingKind::kSharded))
    results.sharded_over_best_cap = gain_over(*sharded, chosen);
}

}  // namespace

std::vector<LinkRow> links_of(const std::vector<PairRow>& pairs) {
  std::map<int64_t, LinkRow> by_rank;
  const auto record = [&by_rank](int64_t rank, const std::string& host, double rate) {
    LinkRow& link = by_rank.try_emplace(rank, LinkRow{.rank = rank, .host = host}).first->second;
    link.bytes_per_s = std::max(link.bytes_per_s, rate);
  };
  for (const PairRow& pair : pairs) {
    const double rate = static_cast<double>(pair.bytes) / pair.seconds;
    record(pair.rank, pair.host, rate);
    record(pair.other, pair.other_host, rate);
  }
  double fastest = 0;
  for (const auto& [rank, link] : by_rank) fastest = std::max(fastest, link.bytes_per_s);
  std::vector<LinkRow> links;
  for (auto& [rank, link] : by_rank) {
    link.share = link.bytes_per_s / fastest;
    link.is_slow = link.share < kSlowLink;
    links.push_back(link);
  }
  return links;
}

nlohmann::json samples_of(std::span<const SettingSteps> settings) {
  nlohmann::json samples = {{"step_s", series_of(settings)}};
  const auto add_if_any = [&samples](const char* name, const auto& times) {
    if (!times.empty()) samples[name].push_back(times);
  };
  for (const SettingSteps& setting : settings) {
    add_if_any("comm_s", setting.comm_s);
    add_if_any("communication_s", setting.communication_s);
    add_if_any("raw_step_s_by_rank", setting.raw_step_s);
  }
  return samples;
}

void add_sections(const Tuning& tuning, Results& results) {
  results.complete = tuning.complete;
  if (!tuning.profile.tensors.names.empty()) results.profile = tuning.profile;
  results.allreduce = tuning.allreduce;
  if (!tuning.allreduce.empty()) results.alpha_beta = fit_alpha_beta(comm_costs(tuning.allreduce, tuning.world_size).isolated.points());
  if (!tuning.calibration.empty()) {
    const BlockFit fit = fit_blocks(series_of(tuning.calibration));
    results.calibration = CalibrationSection{.runs = {}, .fit = tuning.fit};
    for (size_t i = 1; i < fit.size(); ++i) {
      results.calibration->runs.push_back({tuning.calibration[i].name, tuning.calibration[i].buckets, fit[i].median});
    }
  }
  for (const PredictedCap& cap : tuning.dense_curve) results.dense_curve.push_back(predicted_row(cap));
  if (tuning.race.empty()) return;
  results.curve =
      curve_rows(tuning.raced, fit_blocks(series_of(tuning.race)), tuning.race, &tuning.race.at(tuning.standing.choice), nullptr);
  if (tuning.gain.empty()) return;
  const BlockFit fit = fit_blocks(series_of(tuning.gain));
  if (!tuning.compared.empty()) {
    results.curve = curve_rows(tuning.compared, std::span(fit).last(tuning.compared.size()), compared_settings(tuning),
                               &chosen_setting(tuning), find_setting(tuning, SettingKind::kTorchDefault));
  }
  add_strategies(tuning, fit, results);
  results.samples = samples_of(tuning.gain);
  for (const SettingSteps& setting : tuning.gain) results.samples["settings"].push_back(setting.name);
  results.samples["calibration_step_s"] = series_of(tuning.calibration);
  results.samples["race_step_s"] = series_of(tuning.race);
  if (tuning.complete) add_answer(tuning, fit, results);
}

bool is_tied(const Results& results, int64_t cap_bytes) {
  return std::ranges::find(results.indifference_set, cap_bytes) != results.indifference_set.end();
}

std::string remark_on(const Results& results, int64_t cap_bytes) {
  const bool chosen = cap_bytes == results.decision->cap_bytes;
  const bool measured = cap_bytes == results.best_measured->cap_bytes;
  if (chosen) return measured ? "chosen, measured best" : "chosen";
  if (measured) return "measured best";
  return is_tied(results, cap_bytes) ? "not told apart" : "";
}

Table profile_table(const TensorProfile& profile) {
  Table table{
      "Gradients in the order in which they become ready", {{"Tensor", false}, {"Gradient"}, {"Ready after"}, {"Ready so far"}}, {}};
  int64_t total = 0;
  for (size_t i = 0; i < profile.names.size(); ++i) {
    total += profile.bytes[i];
    table.rows.push_back({{profile.names[i], format_bytes(profile.bytes[i]), display_seconds(profile.ready_s[i]), format_bytes(total)}});
  }
  return table;
}

std::string setting_name(const StrategyRow& row) {
  return row.cap_bytes ? fmt::format("{} {}", row.strategy, cap_with_unit(*row.cap_bytes)) : row.strategy;
}

std::vector<PasteSetting> paste_settings(int64_t cap_bytes, int64_t element_bytes, const std::vector<double>& plan_caps_mib) {
  constexpr size_t kLongestPlan = 64;
  const std::string cap = fmt::format("{:.6g}", mib(cap_bytes));
  const int64_t elements = std::max<int64_t>(1, cap_bytes / element_bytes);
  std::vector<PasteSetting> settings = {
      {"PyTorch", fmt::format("DistributedDataParallel(model, bucket_cap_mb={})", cap), "MiB; fractions work"},
      {"Transformers", fmt::format("TrainingArguments(ddp_bucket_cap_mb={})", cap),
       "MiB; whole MiB as a command-line flag; 25 counts as not given"},
      {"Accelerate", fmt::format("DistributedDataParallelKwargs(bucket_cap_mb={})", cap), "MiB; 25 counts as not given"},
      {"Lightning", fmt::format("DDPStrategy(bucket_cap_mb={})", cap), "MiB"},
      {"DeepSpeed", fmt::format("\"zero_optimization\": {{\"reduce_bucket_size\": {}}}", elements),
       fmt::format("elements of {} bytes; ZeRO stages 1 to 3, with overlap_comm", element_bytes)},
      {"Megatron-LM", fmt::format("--overlap-grad-reduce --ddp-bucket-size {}", elements),
       fmt::format("elements of {} bytes; on later pipeline stages it has no effect", element_bytes)},
      {"Horovod", fmt::format("HOROVOD_FUSION_THRESHOLD={}", cap_bytes), "bytes; an upper bound, not a plan"}};
  if (!plan_caps_mib.empty() && plan_caps_mib.size() <= kLongestPlan) {
    settings.insert(
        settings.begin() + 1,
        {"PyTorch, best plan", fmt::format("DistributedDataParallel(model, bucket_cap_mb_list=[{}])", fmt::join(plan_caps_mib, ", ")),
         "MiB; PyTorch 2.13 has it; for gradients of one dtype on one device; in effect from the second step on, not with "
         "find_unused_parameters"});
  }
  return settings;
}

}  // namespace firkin
