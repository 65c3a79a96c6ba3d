// What to set: the answers of `firkin tune` and `firkin predict`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "firkin/base/units.h"
#include "report/words.h"

namespace firkin {
namespace {

// A cap in MiB as it can be typed: a rounder one may make other buckets.
std::string exact_cap(int64_t cap_bytes) {
  return fmt::format("{:.6g}", mib(cap_bytes));
}

// exact_cap() with its unit, for a sentence: "0.75 MiB", "32 B".
std::string exact_cap_with_unit(int64_t cap_bytes) {
  return cap_bytes < kKiB ? format_bytes(cap_bytes) : exact_cap(cap_bytes) + " MiB";
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
  const std::string_view name = name_of(is_sharded ? SettingKind::kSharded : SettingKind::kOrdered);
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
      "With the strategy sharded and buckets of {} ({}), a step is predicted to take {} instead of {} with the best cap, {}{}; no plan "
      "takes less than {}.",
      exact_cap_with_unit(sharded.cap_bytes), buckets_text(sharded.buckets), display_seconds(sharded.period_s),
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

std::string same_buckets(int64_t lowest_cap_bytes, const std::optional<int64_t>& highest_cap_bytes) {
  // Nobody sets a cap below a KiB.
  const std::string from =
      lowest_cap_bytes < kKiB ? "" : fmt::format(" from {}{}", exact_cap(lowest_cap_bytes), highest_cap_bytes ? "" : " MiB on");
  const std::string to =
      highest_cap_bytes ? fmt::format(" {} {}", from.empty() ? "up to" : "to", exact_cap_with_unit(*highest_cap_bytes)) : "";
  return fmt::format("Every cap{}{} makes the same buckets.", from, to);
}

bool is_cpp_program(const RunHead& run) {
  return run.command_line.empty();
}

// "bucket_cap_mb=0.75", "gradient_as_bucket_view=True", or both: what the decision changes; empty if nothing.
std::string settings_of(const Decision& decision, const RunHead& run) {
  std::vector<std::string> set;
  if (!keeps_default(decision.outcome)) {
    set.push_back(is_cpp_program(run) ? "a cap of " + exact_cap_with_unit(decision.cap_bytes)
                                      : fmt::format("bucket_cap_mb={}", exact_cap(decision.cap_bytes)));
  }
  if (decision.options) set.push_back(*decision.options);
  return fmt::format("{}", fmt::join(set, " and "));
}

// Why the default's bucket size is kept, after a colon.
std::string why_default(Outcome outcome, int64_t cap_bytes) {
  const std::string best = fmt::format("the best other cap found, {},", exact_cap_with_unit(cap_bytes));
  switch (outcome) {
    case Outcome::kSameBuckets:
      return "the best cap found makes the same buckets";
    case Outcome::kHidden:
      return "its communication is hidden behind backward";
    case Outcome::kDefaultFaster:
      return best + " is slower";
    case Outcome::kNotToldApart:
      return fmt::format("this run cannot tell whether {} is faster", exact_cap_with_unit(cap_bytes));
    default:
      return fmt::format("{} gains less than {:g} %", best, 100 * kLeastGain);
  }
}

std::string tune_heading(const Decision& decision, const RunHead& run) {
  const std::string set = settings_of(decision, run);
  if (set.empty()) return fmt::format("Keep PyTorch's default (25 MiB): {}.", why_default(decision.outcome, decision.cap_bytes));
  const std::optional<PairedRatio> gain = recommended_over_default(decision);
  if (!gain) return fmt::format("Set {}. PyTorch's default was not measured.", set);
  const double ratio = gain->ratio;
  const std::string measured =
      fmt::format("{} {} time than with PyTorch's default", display_percent(std::abs(1 - ratio)), ratio > 1 ? "more" : "less");
  if (decision.outcome == Outcome::kNotShown) {
    return fmt::format(
        "Try {}: steps are predicted to take {} less time than with PyTorch's default, and took {} {} here; that is not shown yet.", set,
        display_percent(1 - decision.predicted_to_default.value_or(1)), display_percent(std::abs(1 - ratio)), ratio > 1 ? "more" : "less");
  }
  return fmt::format("Set {}{}: steps take {}.", set, keeps_default(decision.outcome) ? ", and keep PyTorch's bucket size" : "", measured);
}

// "22.0 % to 26.0 % less time", "between 15.0 % less and 4.0 % more time": what an interval of a ratio says.
std::string range_text(const Interval& ratio) {
  const double low = 1 - ratio.high, high = 1 - ratio.low;  // of the time saved
  if (low >= 0) return fmt::format("{} to {} less time", display_percent(low), display_percent(high));
  if (high <= 0) return fmt::format("{} to {} more time", display_percent(-high), display_percent(-low));
  return fmt::format("between {} less and {} more time", display_percent(high), display_percent(-low));
}

std::string_view word_of(Certainty certainty) {
  constexpr std::array<std::string_view, 4> kWords = {"Shown", "Likely, not shown", "Not told apart", "Nothing to gain"};
  return kWords[static_cast<size_t>(certainty)];
}

std::string doubt_text(const std::optional<CalibrationSection>& calibration) {
  if (!calibration || !is_doubtful(calibration->fit)) return "";
  return "Firkin's time estimates do not match these steps. Where caps raced, measured steps alone chose.";
}

// The raced caps that the measurement cannot tell apart from the chosen one; one whose median is far off with its interval.
std::string others_text(const Results& results) {
  constexpr double kFar = 1.05;
  const std::string chosen = exact_cap(results.decision->cap_bytes);
  std::vector<std::string> others;
  for (const int64_t cap : results.decision->tied_bytes) {
    if (cap == results.decision->cap_bytes) continue;
    const auto row = std::ranges::find(results.curve, cap, &CurveRow::cap_bytes);
    const bool is_far = row != results.curve.end() && row->ratio_to_chosen.value_or(1) >= kFar && row->ratio_to_chosen_ci;
    others.push_back(exact_cap(cap) + (is_far ? fmt::format(" ({} than {})", range_text(*row->ratio_to_chosen_ci), chosen) : ""));
  }
  if (others.empty()) return "";
  return fmt::format("Not told apart from {} MiB: {} MiB.", chosen, fmt::join(others, ", "));
}

// How sure the answer is: one of four words, and the interval that it follows from.
std::string tune_certainty(const Results& results) {
  constexpr const char* kFrom = "in steps that did not choose";
  const Decision& decision = *results.decision;
  const std::string_view word = word_of(certainty_of(decision));
  const bool has_interval = decision.over_default && std::isfinite(decision.over_default->interval.high);
  const std::string of_cap = has_interval ? range_text(decision.over_default->interval) : "";
  std::vector<std::string> sentences;
  if (decision.options) {
    const std::string of_options = range_text(decision.options_over_none->interval);
    sentences.push_back(keeps_default(decision.outcome) ? fmt::format("{}: {} (95 % interval, {}). Of bucket sizes, {}.", word, of_options,
                                                                      kFrom, why_default(decision.outcome, decision.cap_bytes))
                                                        : fmt::format("{}: {} by the cap alone, and with it {} by {} (95 % intervals, {}).",
                                                                      word, of_cap, of_options, *decision.options, kFrom));
  } else if (decision.outcome == Outcome::kSameBuckets || !decision.over_default) {
    sentences.push_back(fmt::format("{}.", word));
  } else if (!has_interval) {
    sentences.push_back(
        fmt::format("{}: {} blocks of steps were measured, and an interval takes {}.", word, decision.blocks, kFewestSamples));
  } else if (decision.outcome == Outcome::kGain) {
    sentences.push_back(fmt::format("{}: {} (95 % interval, {}).", word, of_cap, kFrom));
  } else {
    sentences.push_back(fmt::format("{}: with {} a step takes {} (95 % interval).", word, exact_cap_with_unit(decision.cap_bytes), of_cap));
  }
  if (!keeps_default(decision.outcome)) sentences.push_back(others_text(results));
  sentences.push_back(doubt_text(results.calibration));
  std::erase(sentences, "");
  return fmt::format("{}", fmt::join(sentences, " "));
}

// Which flag or argument takes so many blocks, in the words of the front end that measured.
std::string more_blocks(const RunHead& run, NextStep step, double blocks) {
  const bool is_time = step == NextStep::kMoreTime;
  if (is_cpp_program(run))
    return is_time ? "a larger ModuleTuningOptions::seconds" : fmt::format("ModuleTuningOptions::blocks = {:.0f}", blocks);
  if (run.command_line[0] == "firkin") return is_time ? "a longer --time" : fmt::format("--blocks {:.0f}", blocks);
  return "a larger time_budget_s";
}

// The one thing that limits this result.
std::string next_step_text(const Results& results) {
  const Decision& decision = *results.decision;
  if (!decision.next_step) return "";
  constexpr double kAtLeast = 1.5;  // what is needed is only known roughly
  const double needed = std::ceil(std::max(decision.blocks_needed.value_or(0), kAtLeast * static_cast<double>(decision.blocks)));
  switch (*decision.next_step) {
    case NextStep::kMoreTime:
    case NextStep::kMoreBlocks:
      return fmt::format("to decide, measure about {:.0f} blocks of steps instead of {}: {}.", needed, decision.blocks,
                         more_blocks(results.run, *decision.next_step, needed));
    case NextStep::kLessNoise:
      return fmt::format(
          "times vary so much that more than {:g} times as many blocks of steps would be needed to decide; measure where nothing else "
          "runs.",
          kMostTimesMoreBlocks);
    case NextStep::kSendLess:
      break;
  }
  const auto row = std::ranges::find(results.strategies, decision.recommended.value_or(""), &StrategyRow::strategy);
  const std::string share =
      row == results.strategies.end() || !row->exposed_s
          ? "most of a step is"
          : fmt::format("of a step of {}, {} are", display_seconds(row->measured_s), display_seconds(*row->exposed_s));
  const auto& ordered = results.ordered_over_best_cap;
  const char* const overlap = !ordered || ordered->interval.high < 1 ? ", or overlap the next forward pass too (strategy ordered)" : "";
  return fmt::format("{} communication that no bucket size hides. Send less (bf16, gradient accumulation){}.", share, overlap);
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
  const bool is_doubtful = results.calibration && firkin::is_doubtful(results.calibration->fit);
  std::vector<std::string> lead = {fmt::format(
      "With {} the model predicts {} per step; {} was measured. {}{}", exact_cap_with_unit(decision.cap_bytes),
      display_seconds(decision.predicted_s), display_seconds(decision.measured_s),
      is_doubtful ? ""
                  : fmt::format("It is expected to cost at most {} over the best raced cap. ", display_percent(decision.expected_regret)),
      same_buckets(decision.lowest_cap_bytes, decision.highest_cap_bytes))};
  if (decision.over_default) {
    lead.emplace_back(
        "Gains are ratios of steps in the same block, in the median: a machine that is slow for a while is so for both. Medians of steps, "
        "as in "
        "the table, may differ more or less than that.");
  }
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
  const bool is_known = model && model->parameters.value_or(0) > 0 && model->gradient_bytes;
  const int64_t element_bytes = is_known ? std::max<int64_t>(1, *model->gradient_bytes / *model->parameters) : kFloatBytes;
  const Decision& decision = *results.decision;
  const int64_t cap_bytes = decision.cap_bytes;
  std::vector<PasteSetting> settings = paste_settings(cap_bytes, element_bytes, {});
  if (keeps_default(decision.outcome)) put_default_first(settings, "bucket_cap_mb");
  if (is_cpp_program(results.run)) {
    const std::string cap = keeps_default(decision.outcome) ? "firkin::kTorchDefaultCaps" : fmt::format("{{.cap_bytes = {}}}", cap_bytes);
    settings.insert(settings.begin(), {"Firkin, C++", fmt::format("firkin::DataParallelOptions options{{.cap = {}}};", cap),
                                       "bytes; ModuleTuning::options holds the best cap found, with the ready order"});
  }
  for (auto& [tool, setting, note] : settings) {
    if (decision.options && setting.starts_with("DistributedDataParallel(model"))
      setting.insert(setting.size() - 1, ", " + *decision.options);
  }
  return settings;
}

constexpr double kLeastGainShown = 5e-4;

// "4.0 to 31.2 % less time", "2.1 % more to 31.2 % less time"
std::string range_text(const PredictedGain& gain) {
  if (gain.low > 0) return fmt::format("{} to {} less time", display_percent(gain.low), display_percent(gain.high));
  if (gain.high < 0) return fmt::format("{} to {} more time", display_percent(-gain.high), display_percent(-gain.low));
  return fmt::format("{} more to {} less time", display_percent(-gain.low), display_percent(gain.high));
}

// What such ranges of a gain have held, where that was checked.
std::string_view what_held(const Prediction& prediction) {
  if (prediction.workload.extrapolated_from) return "How often this holds for ranks that were not measured is not known.";
  return kGainHeld;
}

// How sure the gain is, in the words of tune except "shown": a prediction shows nothing.
std::string kind_of_certainty(const Prediction& prediction) {
  if (!prediction.over_default) return "Not compared with PyTorch's default.";
  const std::string gain = display_percent(prediction.over_default->expected);
  switch (answer_of(prediction)) {
    case PredictedAnswer::kLikely:
      return fmt::format("Likely, not shown: {} is expected. {}", gain, what_held(prediction));
    case PredictedAnswer::kNotToldApart:
      return fmt::format(
          "Not told apart: {} is expected, but the errors of such predictions reach further. {}`firkin tune` measures it.", gain,
          prediction.workload.compute_assumed ? "Computing times are assumed: measured ones (`firkin import`) narrow this. " : "");
    case PredictedAnswer::kNothingToGain:
      break;
  }
  return fmt::format("Nothing to gain: {} is expected of the best cap, {}.", gain, range_text(*prediction.over_default));
}

// How far the cap is from the best one, which is not known.
std::string near_best_text(double near_best, double expected_regret) {
  constexpr double kMostRegretSaid = 0.1;  // a larger one is not told by number: such caps cost less than was said
  const std::string regret =
      expected_regret < kMostRegretSaid ? display_percent(expected_regret) : display_percent(kMostRegretSaid) + " or more";
  const std::string expected = fmt::format("expected to take {} longer than with the best cap, which is not known", regret);
  switch (near_best_of(near_best)) {
    case NearBest::kLikely:
      return fmt::format("It is {}; that it is within 5 % is likely: seven in ten such caps were.", expected);
    case NearBest::kPossible:
      return fmt::format("It is {}; it may be within 5 %: more than half of such caps were.", expected);
    case NearBest::kUnlikely:
      break;
  }
  return fmt::format("It is {}; that it is within 5 % is unlikely: one in six such caps was.", expected);
}

// A sentence if the fitted line says little about the table; empty otherwise.
std::string table_misfit(const AlphaBeta& fit) {
  constexpr double kLarge = 0.15;
  if (fit.median_relative_error < kLarge) return "";
  return fmt::format("The all-reduce table misses its own line by {} in the median: measure it again on an idle link.",
                     display_percent(fit.median_relative_error));
}

// How sure the gain is, and whether the table is fit for predicting.
std::string prediction_certainty(const Prediction& prediction) {
  std::vector<std::string> sentences = {kind_of_certainty(prediction), table_misfit(prediction.alpha_beta)};
  std::erase(sentences, "");
  return fmt::format("{}", fmt::join(sentences, " "));
}

// The time with the best cap found, its interval, its expected cost over the best cap, and the caps that make the same
// buckets.
std::string best_cap_text(const Prediction& prediction) {
  const PredictedCap& best = prediction.best_uniform;
  const double gain = prediction.best_plan.gain;
  std::vector<std::string> sentences = {fmt::format("With {} ({}) backward takes {}, {} of it exposed communication; the best plan {}.",
                                                    exact_cap_with_unit(best.cap_bytes), buckets_text(best.buckets),
                                                    display_seconds(best.time_s), display_seconds(best.exposed_s),
                                                    gain < kLeastGainShown ? "gains nothing" : "gains " + display_percent(gain))};
  sentences.push_back(fmt::format("Most measured times should lie between {} and {}, given the errors of the model and of {}.",
                                  display_seconds(best.low_s), display_seconds(best.high_s),
                                  prediction.workload.extrapolated_from ? "the growth with ranks" : "the measurements"));
  sentences.push_back(near_best_text(best.near_best.value(), best.expected_regret.value()));
  if (best.lowest_cap_bytes > 0 && best.highest_cap_bytes > 0 && best.highest_cap_bytes < prediction.workload.gradient_bytes) {
    sentences.push_back(same_buckets(best.lowest_cap_bytes, best.highest_cap_bytes));
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

std::string prediction_heading(const Prediction& prediction) {
  const PredictedCap& best = prediction.best_uniform;
  const std::string cap = fmt::format("bucket_cap_mb={}", exact_cap(best.cap_bytes));
  if (!prediction.over_default) return fmt::format("Set {}: backward is predicted to take {}.", cap, display_seconds(best.time_s));
  const std::string range = range_text(*prediction.over_default);
  switch (answer_of(prediction)) {
    case PredictedAnswer::kLikely:
      return fmt::format("Set {}: backward is predicted to take {} than with PyTorch's default.", cap, range);
    case PredictedAnswer::kNotToldApart:
      return fmt::format("Keep PyTorch's default until steps are measured: with {} backward may take {}.", cap, range);
    case PredictedAnswer::kNothingToGain:
      break;
  }
  return fmt::format("Keep PyTorch's default: no cap is expected to shorten backward by {} or more.", display_percent(kWorthMeasuring));
}

std::vector<PasteSetting> prediction_settings(const Prediction& prediction) {
  const PredictedPlan& plan = prediction.best_plan;
  const int64_t cap_bytes = std::max<int64_t>(1, prediction.best_uniform.cap_bytes);
  std::vector<PasteSetting> settings =
      paste_settings(cap_bytes, kFloatBytes, plan.pytorch.reproduces_plan ? plan.pytorch.bucket_cap_mb_list : std::vector<double>());
  if (answer_of(prediction) != PredictedAnswer::kLikely) put_default_first(settings, "bucket_cap_mb=");
  return settings;
}

}  // namespace

void recommend(const Results& results, Wording& answer) {
  if (results.decision) {
    const Decision& decision = *results.decision;
    answer.heading = tune_heading(decision, results.run);
    answer.certainty = tune_certainty(results);
    answer.next_step = next_step_text(results);
    answer.own_engine = own_engine(results);
    answer.recommends_own_engine = answer.own_engine.find(kRecommended) != std::string::npos;
    answer.lead = tune_lead(results);
    answer.settings = tune_settings(results);
  } else {
    const Prediction& prediction = results.prediction.value();
    answer.heading = prediction_heading(prediction);
    answer.certainty = prediction_certainty(prediction);
    answer.lead = {best_cap_text(prediction), prediction_inputs(prediction)};
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
