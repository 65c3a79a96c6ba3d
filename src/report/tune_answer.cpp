// The answer of `firkin tune` in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "answer.h"
#include "firkin/base/units.h"
#include "firkin/stats/summary.h"
#include "results/numbers.h"

namespace firkin {
namespace {

// "8, 16 and 25"
std::string enumerated(const std::vector<std::string>& items) {
  if (items.size() < 2) return items.empty() ? "" : items[0];
  return fmt::format("{} and {}", fmt::join(items.begin(), items.end() - 1, ", "), items.back());
}

std::vector<std::string> cap_texts(const std::vector<double>& caps_mib) {
  std::vector<std::string> texts;
  for (const double cap : caps_mib) texts.push_back(display_cap(cap));
  return texts;
}

bool excludes_no_gain(const Gain& gain) {
  return gain.ratio_ci.high < 1;
}

// "28.4 % less time than PyTorch's default (95 % interval 26.1 to 30.2 %)"
std::string against(const Gain& gain, const std::string& other) {
  const Interval saved{1 - gain.ratio_ci.high, 1 - gain.ratio_ci.low};
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

constexpr const char* kTorchDefault = "PyTorch's default";

std::string against_default(const Gain& gain) {
  return against(gain, kTorchDefault);
}

std::string ordered_sentence(const TuneAnswer& answer) {
  const std::string takes = against(*answer.ordered_over_best_cap, "the best cap");
  if (!excludes_no_gain(*answer.ordered_over_best_cap)) {
    return fmt::format("The strategy ordered, which hides communication behind the next forward pass too, takes {}.", takes);
  }
  const std::string over_default =
      answer.ordered_over_default ? fmt::format(", and {}", against_default(*answer.ordered_over_default)) : "";
  return fmt::format("Recommended: the strategy ordered, which hides communication behind the next forward pass too. It takes {}{}.", takes,
                     over_default);
}

std::string hook_sentence(const HookGain& hook) {
  const Gain gain{hook.ratio, hook.ratio_ci.value_or(Interval{0, HUGE_VAL})};
  return fmt::format(
      "With gradients as {} on the wire, {} MiB is predicted to be best ({}), and a step takes {}. It rounds gradients to 8 "
      "significant bits: compare the loss before you keep it.",
      hook.hook, display_cap(hook.cap_mib), display_seconds(hook.predicted_s), against(gain, "without"));
}

std::string interval_text(const std::optional<Interval>& interval) {
  if (!interval || !std::isfinite(interval->high)) return "";  // too few samples
  return fmt::format("95 % interval {} to {}", display_percent(interval->low), display_percent(interval->high));
}

std::string tie_sentence(const DecisionSection& decision) {
  std::vector<double> others = decision.tied_mib;
  std::erase(others, decision.cap_mib);
  if (others.empty()) return "";
  return fmt::format(" The measurement cannot tell {} MiB from it.", enumerated(cap_texts(others)));
}

std::string bounds_sentence(const DecisionSection& decision) {
  if (!decision.lowest_cap_mib) return "";
  if (!decision.highest_cap_mib)
    return fmt::format(" Every cap from {} MiB on makes the same buckets.", display_cap(*decision.lowest_cap_mib));
  return fmt::format(" Every cap from {} to {} MiB makes the same buckets.", display_cap(*decision.lowest_cap_mib),
                     display_cap(*decision.highest_cap_mib));
}

KeyFigure error_figure(const std::vector<CurveRow>& curve) {
  std::vector<double> errors;
  for (const CurveRow& row : curve) {
    if (row.predicted_s && row.measured_s) errors.push_back(std::abs(*row.predicted_s / *row.measured_s - 1));
  }
  return {"Prediction error", display_percent(median(errors)),
          fmt::format("median over {} caps; worst {}", errors.size(), display_percent(std::ranges::max(errors)))};
}

}  // namespace

std::string tune_heading(const Results& results) {
  const DecisionSection& decision = results.answer->decision;
  const std::string set = fmt::format("Set bucket_cap_mb={}", display_cap(decision.cap_mib));
  const std::string keep = fmt::format("Keep {}", kTorchDefault);
  const std::string gain = decision.over_default ? against_default(*decision.over_default) : "";
  const std::string predicted = decision.predicted_to_default ? display_percent(1 - *decision.predicted_to_default) : "";
  const auto is = [&](Outcome outcome) { return decision.outcome == name_of(outcome); };
  if (is(Outcome::kGain)) return fmt::format("{}: a step takes {}.", set, gain);
  if (is(Outcome::kNotShown)) {
    return fmt::format("{}: {} less time than {} is predicted; measured, a step takes {}. More blocks would tell.", set, predicted,
                       kTorchDefault, gain);
  }
  if (is(Outcome::kSameBuckets)) return fmt::format("{}: it makes the same buckets as the best cap.", keep);
  if (is(Outcome::kHidden)) return fmt::format("{}: its communication is hidden, a step takes as long as one without any.", keep);
  if (is(Outcome::kDefaultFaster))
    return fmt::format("{}: with the best other cap, {} MiB, a step takes {}.", keep, display_cap(decision.cap_mib), gain);
  if (is(Outcome::kNothingToGain)) {
    return fmt::format("{}: with the best other cap, {} MiB, a step takes {}.", keep, display_cap(decision.cap_mib), gain);
  }
  return predicted.empty() ? fmt::format("{}. {} was not measured.", set, kTorchDefault)
                           : fmt::format("{}: {} less time than {} is predicted, which was not measured.", set, predicted, kTorchDefault);
}

std::vector<std::string> tune_lead(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  const DecisionSection& decision = answer.decision;
  std::string sure = fmt::format("With {} MiB", display_cap(decision.cap_mib));
  if (decision.predicted_s) sure += fmt::format(" the model predicts {} a step", display_seconds(*decision.predicted_s));
  if (decision.measured_s) sure += fmt::format("; {} was measured", display_seconds(*decision.measured_s));
  sure += "." + tie_sentence(decision);
  if (decision.expected_regret) {
    sure += fmt::format(" It is expected to cost at most {} over the best of the caps that were raced.",
                        display_percent(*decision.expected_regret));
  }
  std::vector<std::string> lead = {sure + bounds_sentence(decision)};
  if (answer.ordered_over_best_cap) lead.push_back(ordered_sentence(answer));
  for (const HookGain& hook : answer.hooks) lead.push_back(hook_sentence(hook));
  if (results.calibration && !results.calibration->fit.warning.empty()) {
    lead.push_back(fmt::format("Warning: {}", results.calibration->fit.warning));
  }
  return lead;
}

std::vector<KeyFigure> tune_figures(const Results& results) {
  const DecisionSection& decision = results.answer->decision;
  std::vector<KeyFigure> figures = {{"Bucket cap", display_cap(decision.cap_mib) + " MiB", decision.outcome}};
  if (decision.over_default) {
    const Gain& gain = *decision.over_default;
    figures.push_back({"Against PyTorch's default", display_percent(gain.ratio - 1, true),
                       interval_text(Interval{gain.ratio_ci.low - 1, gain.ratio_ci.high - 1})});
  }
  if (decision.predicted_s && decision.measured_s) {
    figures.push_back({"Step time", display_seconds(*decision.measured_s), display_seconds(*decision.predicted_s) + " predicted"});
  }
  figures.push_back({"Not told from it", fmt::format("{} of {} caps", decision.tied_mib.size(), results.curve.size()),
                     fmt::format("{} MiB", fmt::join(cap_texts(decision.tied_mib), ", "))});
  figures.push_back(error_figure(results.curve));
  const auto naive = std::ranges::find(results.strategies, "naive", &StrategyRow::strategy);
  if (naive != results.strategies.end() && decision.measured_s) {
    figures.push_back(
        {"Against naive", fmt::format("{:.2f} ×", naive->measured_s / *decision.measured_s),
         fmt::format("as fast: {} instead of {}", display_seconds(*decision.measured_s), display_seconds(naive->measured_s))});
  }
  return figures;
}

std::vector<PasteSetting> tune_settings(const Results& results) {
  const std::optional<ModelDescription>& model = results.run.model;
  const bool half = model && model->dtype && *model->dtype == "bf16";
  const DecisionSection& decision = results.answer->decision;
  std::vector<PasteSetting> settings =
      paste_settings(std::llround(decision.cap_mib * static_cast<double>(kMiB)), half ? 2 : 4, results.answer->plan_caps_mib);
  if (const auto outcome = outcome_named(decision.outcome); outcome && keeps_default(*outcome)) {
    std::erase_if(settings, [](const PasteSetting& setting) { return setting.setting.find("bucket_cap_mb") != std::string::npos; });
    settings.insert(settings.begin(), {"PyTorch", "DistributedDataParallel(model)", "its default: 25 MiB after a first bucket of 1 MiB"});
  }
  return settings;
}

}  // namespace firkin
