// What to set: the answers of `firkin tune` and `firkin predict`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "firkin/base/units.h"
#include "report/words.h"

namespace firkin {
namespace {

// A cap as it can be typed: a rounder one may make other buckets.
std::string exact_cap(double cap_mib) {
  return fmt::format("{:.6g}", cap_mib);
}

// "28.4 % less time than PyTorch's default (95 % interval 26.1 to 30.2 %)"
std::string against(const PairedRatio& gain, const std::string& other) {
  const Interval saved{1 - gain.interval.high, 1 - gain.interval.low};
  if (!std::isfinite(saved.low)) {
    return fmt::format("{:.3f} times as long as {}, from too few samples for an interval", gain.ratio, other);
  }
  if (saved.low <= 0 && saved.high >= 0) {
    return fmt::format("as long as {}, as far as this measurement can tell (95 % interval of the difference {} to {})", other,
                       display_percent(-saved.high, true), display_percent(-saved.low, true));
  }
  const bool gains = gain.ratio < 1;
  const double low = gains ? saved.low : -saved.high, high = gains ? saved.high : -saved.low;
  return fmt::format("{} {} time than {} (95 % interval {} to {})", display_percent(std::abs(1 - gain.ratio)), gains ? "less" : "more",
                     other, display_percent(low), display_percent(high));
}

constexpr const char* kRecommended = " (recommended)";

// "ordered (recommended), which also overlaps the next forward pass: 179 ms per step, 12.3 % less time than the best
// cap (...)"
std::string own_engine(const Results& results) {
  if (!results.ordered_over_best_cap) return "";
  const PairedRatio& ordered = *results.ordered_over_best_cap;
  const auto& sharded = results.sharded_over_best_cap;
  const bool is_sharded = sharded && sharded->ratio < ordered.ratio;
  const PairedRatio& best = is_sharded ? *sharded : ordered;
  const char* const name = is_sharded ? kShardedName : kOrderedName;
  const auto row = std::ranges::find(results.strategies, name, &StrategyRow::strategy);
  return fmt::format("{}{}, which also overlaps the next forward pass: {}{}", name, best.interval.high < 1 ? kRecommended : "",
                     row == results.strategies.end() ? "" : display_seconds(row->measured_s) + " per step, ",
                     against(best, "the best cap"));
}

std::string buckets_text(auto count) {
  return count == 1 ? "1 bucket" : fmt::format("{} buckets", count);
}

// Time and memory under the strategy sharded, which divides the optimiser among the ranks. measured: over the best cap.
std::string sharded_text(const PredictedSharded& sharded, const std::optional<PairedRatio>& measured) {
  const auto than = [](double gain) { return fmt::format("{} {}", display_percent(std::abs(gain)), gain < 0 ? "more" : "less"); };
  const RankMemory& memory = sharded.sharded;
  std::vector<std::string> sentences = {fmt::format(
      "With the strategy sharded and buckets of {} MiB ({}), a step is predicted to take {} instead of {} with the best cap, {}{}; no plan "
      "takes less than {}.",
      exact_cap(mib(sharded.cap_bytes)), buckets_text(sharded.buckets), display_seconds(sharded.period_s),
      display_seconds(sharded.bucketed_period_s), than(sharded.gain()),
      sharded.gain_over_ordered ? fmt::format(" ({} than ordered)", than(*sharded.gain_over_ordered)) : "",
      display_seconds(sharded.bound_s))};
  if (measured) sentences.push_back(fmt::format("Measured, it takes {}.", against(*measured, "the best cap")));
  sentences.push_back(
      fmt::format("With AdamW a rank then keeps {} of parameters, gradients and state instead of {}, and {} more during a step.",
                  format_bytes(memory.total() - memory.received), format_bytes(sharded.plain.total()), format_bytes(memory.received)));
  if (sharded.halves) sentences.emplace_back("Reduce-scatter and all-gather are taken as half an all-reduce each.");
  return fmt::format("{}", fmt::join(sentences, " "));
}

std::string same_buckets(double lowest_cap_mib, const std::optional<double>& highest_cap_mib) {
  const std::string to = highest_cap_mib ? fmt::format("to {} MiB", exact_cap(*highest_cap_mib)) : "MiB on";
  return fmt::format("Every cap from {} {} makes the same buckets.", exact_cap(lowest_cap_mib), to);
}

std::string tune_heading(const Decision& decision) {
  if (decision.outcome == Outcome::kSameBuckets) return "Keep PyTorch's default: it makes the same buckets as the best cap.";
  if (decision.outcome == Outcome::kHidden)
    return "Keep PyTorch's default: its communication is hidden, so steps take as long as without any.";
  if (decision.outcome == Outcome::kDefaultFaster) return "Keep PyTorch's default: no other cap was faster.";
  if (decision.outcome == Outcome::kNothingToGain) return "Keep PyTorch's default: no other cap shows a measurable gain.";
  const std::string set = fmt::format("Set bucket_cap_mb={}", exact_cap(decision.cap_mib));
  if (decision.outcome == Outcome::kGain && decision.over_default)
    return fmt::format("{}: steps take {} less time than with PyTorch's default.", set, display_percent(1 - decision.over_default->ratio));
  if (!decision.predicted_to_default) return fmt::format("{}. PyTorch's default was not measured.", set);
  const std::string predicted = display_percent(1 - *decision.predicted_to_default);
  if (!decision.over_default)
    return fmt::format("{}: {} less time than with PyTorch's default is predicted, not measured.", set, predicted);
  const double saved = 1 - decision.over_default->ratio;
  return fmt::format("{}: measured steps take {} {} time than with PyTorch's default, which may be noise; {} less is predicted.", set,
                     display_percent(std::abs(saved)), saved >= 0 ? "less" : "more", predicted);
}

// How to ask for more blocks of steps, in the words of the front end that measured.
std::string more_blocks(const RunHead& run) {
  if (run.command_line.empty()) return "a larger budget of time";  // a C++ program
  return run.command_line[0] == "firkin" ? "more --blocks" : "a larger time_budget_s";
}

// How sure it is, and what the measurement cannot tell.
std::string tune_certainty(const Decision& decision, const RunHead& run) {
  std::string text;
  const auto add = [&text](const std::string& sentence) { text += (text.empty() ? "" : " ") + sentence; };
  if (const auto& gain = decision.over_default; gain && decision.outcome != Outcome::kSameBuckets) {
    if (decision.outcome == Outcome::kGain && std::isfinite(gain->interval.high)) {
      add(fmt::format("95 % interval {} to {}, from blocks that had no part in choosing the cap.", display_percent(1 - gain->interval.high),
                      display_percent(1 - gain->interval.low)));
    } else {
      add(fmt::format("Measured with {} MiB, a step takes {}.", exact_cap(decision.cap_mib), against(*gain, "with PyTorch's default")));
    }
  }
  if (decision.outcome == Outcome::kNotShown) add(fmt::format("To settle it takes {}.", more_blocks(run)));
  std::vector<std::string> others;
  for (const double cap : decision.tied_mib) {
    if (cap != decision.cap_mib) others.push_back(exact_cap(cap));
  }
  if (!others.empty()) add(fmt::format("{} MiB may be as fast: this measurement cannot tell.", fmt::join(others, ", ")));
  return text;
}

// Which of three worlds a workload lies in (docs/where_it_matters.md), from a(x) as latency and bandwidth.
std::string place_on_the_map(int64_t gradient_bytes, double backward_s, const AlphaBeta& fit) {
  constexpr double kHidden = 0.1;   // share of backward that all gradients at once take
  constexpr double kLatency = 0.5;  // a bucket's rate, relative to that of all gradients
  constexpr double kBuckets = 4;    // with fewer, little would overlap
  const auto bytes = static_cast<double>(gradient_bytes);
  const double all_s = fit.alpha_s + fit.beta_s_per_byte * bytes;
  if (!(bytes > 0) || !(backward_s > 0) || !(all_s > 0)) return "";
  const double bucket = std::min(static_cast<double>(25 * kMiB), bytes / kBuckets);
  const double rate = bucket / (fit.alpha_s + fit.beta_s_per_byte * bucket) / (bytes / all_s);
  const std::string_view world = all_s < kHidden * backward_s ? "hidden: bucket size decides little"
                                 : rate < kLatency            ? "latency-bound: larger buckets gain"
                                 : all_s > backward_s         ? "bandwidth-bound: no bucket size hides all communication behind backward"
                                                              : "in between: buckets of the right size hide most communication";
  return fmt::format(
      "On the map of clusters (docs/where_it_matters.md), communication here is {}. All gradients ({}) in one "
      "all-reduce take {}, {} of backward; buckets of {} reach {} of that rate.",
      world, format_bytes(gradient_bytes), display_seconds(all_s), display_percent(all_s / backward_s), format_bytes(std::llround(bucket)),
      display_percent(rate));
}

std::vector<std::string> tune_lead(const Results& results) {
  const Decision& decision = *results.decision;
  std::vector<std::string> lead = {fmt::format(
      "With {} MiB the model predicts {} per step; {} was measured. It is expected to cost at most {} over the best raced cap. {}",
      exact_cap(decision.cap_mib), display_seconds(decision.predicted_s), display_seconds(decision.measured_s),
      display_percent(decision.expected_regret), same_buckets(decision.lowest_cap_mib, decision.highest_cap_mib))};
  if (results.sharded) lead.push_back(sharded_text(*results.sharded, results.sharded_over_best_cap));
  if (results.profile && results.alpha_beta) {
    const TensorProfile& profile = results.profile->tensors;
    lead.push_back(place_on_the_map(profile.total_bytes(), profile.backward_s, *results.alpha_beta));
  }
  return lead;
}

// Puts PyTorch's default in place of the settings that hold `left_out`.
void put_default_first(std::vector<PasteSetting>& settings, std::string_view left_out) {
  std::erase_if(settings, [&](const PasteSetting& setting) { return setting.setting.find(left_out) != std::string::npos; });
  settings.insert(settings.begin(), {"PyTorch", "DistributedDataParallel(model)", "its default: 25 MiB after a first bucket of 1 MiB"});
}

std::vector<PasteSetting> tune_settings(const Results& results) {
  const std::optional<ModelDescription>& model = results.run.model;
  const bool half = model && model->dtype && *model->dtype == "bf16";
  const int64_t element_bytes = half ? 2 : 4;
  const Decision& decision = *results.decision;
  const int64_t cap_bytes = std::llround(decision.cap_mib * static_cast<double>(kMiB));
  std::vector<PasteSetting> settings = paste_settings(cap_bytes, element_bytes, {});
  if (keeps_default(decision.outcome)) put_default_first(settings, "bucket_cap_mb");
  for (auto& [tool, setting, note] : settings) {
    if (decision.options && setting.starts_with("DistributedDataParallel(model"))
      setting.insert(setting.size() - 1, ", " + *decision.options);
  }
  return settings;
}

constexpr double kLeastGainShown = 5e-4;

// What the cap achieves, its interval, its possible cost if model and inputs are off, and the equivalent caps.
std::string prediction_certainty(const Prediction& prediction) {
  const PredictedCap& best = prediction.best_uniform;
  const double gain = prediction.best_plan.gain;
  std::vector<std::string> sentences = {fmt::format("With {} backward takes {}, {} of it exposed communication; the best plan {}.",
                                                    buckets_text(best.buckets), display_seconds(best.time_s),
                                                    display_seconds(best.exposed_s),
                                                    gain < kLeastGainShown ? "gains nothing" : "gains " + display_percent(gain))};
  sentences.push_back(fmt::format("Most measured times should lie between {} and {}, given the errors of the model and of {}.",
                                  display_seconds(best.low_s), display_seconds(best.high_s),
                                  prediction.workload.extrapolated_from ? "the growth with ranks" : "the measurements"));
  sentences.push_back(
      fmt::format("This cap is the safest choice: expected to cost {} over the best, and within 1 % of it in {} of the cases considered.",
                  display_percent(best.expected_regret.value()), display_percent(best.near_best.value())));
  if (best.lowest_cap_bytes > 0 && best.highest_cap_bytes > 0 && best.highest_cap_bytes < prediction.workload.gradient_bytes) {
    sentences.push_back(same_buckets(mib(best.lowest_cap_bytes), mib(best.highest_cap_bytes)));
  }
  if (!best.exhaustive.value_or(true)) {
    sentences.emplace_back("There are too many caps to try all: some were skipped, here and wherever caps are compared.");
  }
  return fmt::format("{}", fmt::join(sentences, " "));
}

// What the prediction was made from.
std::string prediction_inputs(const Prediction& prediction) {
  const PredictedWorkload& workload = prediction.workload;
  const AlphaBeta& fit = prediction.alpha_beta;
  const std::string bandwidth = fit.beta_s_per_byte > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / fit.beta_s_per_byte) : "no limit";
  std::vector<std::string> sentences = {
      fmt::format("{} tensors, {} of gradients, backward {}; {} ranks; rule {}.", workload.tensors, format_bytes(workload.gradient_bytes),
                  display_seconds(workload.backward_s), workload.world_size, workload.rule),
      fmt::format("a(x) fits {} + x / ({}), with a median error of {}.", display_seconds(fit.alpha_s), bandwidth,
                  display_percent(fit.median_relative_error)),
      place_on_the_map(workload.gradient_bytes, workload.backward_s, fit)};
  std::erase(sentences, "");
  return fmt::format("{}", fmt::join(sentences, " "));
}

// What it is worth to hide communication behind the next forward pass as well; the plan is in a table.
std::string ordered_text(const PredictedOrdered& ordered) {
  return fmt::format(
      "With the strategy ordered, which also overlaps the next forward pass, a step takes {} ({} to {}) instead of {} with the best "
      "cap, {}; no plan takes less than {}.",
      display_seconds(ordered.period_s), display_seconds(ordered.low_s), display_seconds(ordered.high_s),
      display_seconds(ordered.bucketed_period_s),
      ordered.gain() < kLeastGainShown ? "which gains nothing" : display_percent(ordered.gain()) + " less",
      display_seconds(ordered.bound_s));
}

// What backward with its communication gains over PyTorch's default; none if that was not predicted.
std::optional<double> gain_over_default(const Prediction& prediction) {
  const auto by_default = std::ranges::find(prediction.baselines, "pytorch", &PredictedBaseline::name);
  if (by_default == prediction.baselines.end() || by_default->plan.time_s <= 0) return std::nullopt;
  return 1 - prediction.best_uniform.time_s / by_default->plan.time_s;
}

bool keeps_default(const Prediction& prediction) {
  return gain_over_default(prediction).value_or(1) < kLeastGainShown;
}

std::string prediction_heading(const Prediction& prediction) {
  if (keeps_default(prediction)) return "Keep PyTorch's default: no cap is predicted to shorten backward.";
  const std::string set =
      fmt::format("Set bucket_cap_mb={}: backward is predicted to take", exact_cap(mib(prediction.best_uniform.cap_bytes)));
  const std::optional<double> gain = gain_over_default(prediction);
  if (!gain) return fmt::format("{} {}.", set, display_seconds(prediction.best_uniform.time_s));
  return fmt::format("{} {} less time than with PyTorch's default.", set, display_percent(*gain));
}

std::vector<PasteSetting> prediction_settings(const Prediction& prediction) {
  const PredictedPlan& plan = prediction.best_plan;
  const int64_t cap_bytes = std::max<int64_t>(1, prediction.best_uniform.cap_bytes);
  std::vector<PasteSetting> settings =
      paste_settings(cap_bytes, kFloatBytes, plan.pytorch.reproduces_plan ? plan.pytorch.mib : std::vector<double>());
  if (keeps_default(prediction)) put_default_first(settings, "bucket_cap_mb=");
  return settings;
}

}  // namespace

void recommend(const Results& results, Wording& answer) {
  if (results.decision) {
    const Decision& decision = *results.decision;
    answer.heading = tune_heading(decision);
    answer.certainty = tune_certainty(decision, results.run);
    answer.own_engine = own_engine(results);
    answer.recommends_own_engine = answer.own_engine.find(kRecommended) != std::string::npos;
    answer.lead = tune_lead(results);
    answer.settings = tune_settings(results);
  } else {
    const Prediction& prediction = results.prediction.value();
    answer.heading = prediction_heading(prediction);
    answer.certainty = prediction_certainty(prediction);
    answer.lead = {prediction_inputs(prediction)};
    if (prediction.ordered) answer.lead.push_back(ordered_text(*prediction.ordered));
    if (prediction.sharded) answer.lead.push_back(sharded_text(*prediction.sharded, {}));
    answer.settings = prediction_settings(prediction);
    if (const auto from = prediction.workload.extrapolated_from) {
      answer.warnings.push_back(
          fmt::format("EXTRAPOLATED: {} ranks were not measured. Times are those of {} ranks, by four laws of growth. If those shared a "
                      "node and these do not, no law holds.",
                      prediction.workload.world_size, *from));
    }
  }
}

}  // namespace firkin
