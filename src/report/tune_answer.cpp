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

// "28.4 % less time than PyTorch's default (95 % interval 26.1 % to 30.2 %)"
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

std::string against_default(const Gain& gain) {
  return against(gain, "PyTorch's default");
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

std::string bucket_count(const CurveRow& row) {
  if (!row.buckets) return "";
  return *row.buckets == 1 ? "1 bucket" : fmt::format("{} buckets", *row.buckets);
}

std::string interval_text(const std::optional<Interval>& interval) {
  if (!interval || !std::isfinite(interval->high)) return "";  // too few samples
  return fmt::format("95 % interval {} to {}", display_percent(interval->low), display_percent(interval->high));
}

// Whether unequal buckets were measured, and not those of a cap under another name.
bool has_own_plan(const Results& results) {
  return std::ranges::find(results.strategies, "planned", &StrategyRow::strategy) != results.strategies.end();
}

bool all_tied(const Results& results) {
  return results.answer->indifference_set.size() >= results.curve.size();
}

std::string regret_sentence(const TuneAnswer& answer) {
  const std::string interval = interval_text(answer.regret_ci);
  return fmt::format("Trusting the prediction costs {} of the step time{}.", display_percent(answer.regret),
                     interval.empty() ? "" : fmt::format(" ({})", interval));
}

std::string tie_sentence(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  if (all_tied(results)) {
    return "On this set-up the bucket size makes no difference that this measurement can show.";
  }
  if (answer.indifference_set.size() == 1) return "No other measured cap reaches it within the measurement's uncertainty.";
  return fmt::format("The caps {} MiB cannot be told from the best.", enumerated(cap_texts(answer.indifference_set)));
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
  const TuneAnswer& answer = *results.answer;
  const std::string cap = display_cap(answer.best_predicted.cap_mib);
  const std::string measured = display_cap(answer.best_measured.cap_mib);
  std::string gain;
  if (answer.over_default) gain = fmt::format(" A step takes {}.", against_default(*answer.over_default));
  if (answer.best_predicted.cap_mib == answer.best_measured.cap_mib) {
    return fmt::format("A cap of {} MiB is best: the prediction and the measurement agree.{}", cap, gain);
  }
  if (all_tied(results)) {
    return fmt::format("A cap of {} MiB is predicted to be best; all {} measured caps are tied.{}", cap, results.curve.size(), gain);
  }
  if (!is_tied(answer, answer.best_predicted.cap_mib)) {
    return fmt::format("Predicted best: {} MiB. Measured best: {} MiB. Trusting the prediction costs {}.{}", cap, measured,
                       display_percent(answer.regret), gain);
  }
  return fmt::format("A cap of {} MiB is predicted to be best, and cannot be told from the measured best, {} MiB.{}", cap, measured, gain);
}

std::vector<std::string> tune_lead(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  std::string prediction = fmt::format("At {} MiB the model predicts {} a step", display_cap(answer.best_predicted.cap_mib),
                                       display_seconds(*answer.best_predicted.predicted_s));
  if (answer.best_predicted.measured_s) prediction += fmt::format("; {} was measured", display_seconds(*answer.best_predicted.measured_s));
  prediction += ".";
  if (answer.best_predicted.cap_mib != answer.best_measured.cap_mib) {
    prediction += fmt::format(" The measured best is {} MiB with {}.", display_cap(answer.best_measured.cap_mib),
                              display_seconds(*answer.best_measured.measured_s));
    prediction += fmt::format(" {}", regret_sentence(answer));
  }
  std::vector<std::string> lead = {fmt::format("{} {}", prediction, tie_sentence(results))};
  if (answer.planned_over_default && has_own_plan(results)) {
    lead.push_back(fmt::format("The best plan of unequal buckets ({} of them) takes {}.", answer.plan_mib.size(),
                               against_default(*answer.planned_over_default)));
  }
  if (answer.ordered_over_best_cap) lead.push_back(ordered_sentence(answer));
  for (const HookGain& hook : answer.hooks) lead.push_back(hook_sentence(hook));
  if (results.calibration && !results.calibration->fit.warning.empty()) {
    lead.push_back(fmt::format("Warning: {}", results.calibration->fit.warning));
  }
  return lead;
}

std::vector<KeyFigure> tune_figures(const Results& results) {
  const TuneAnswer& answer = *results.answer;
  const CurveRow& predicted = answer.best_predicted;
  const CurveRow& measured = answer.best_measured;
  const auto best_note = [](const CurveRow& row, const std::string& time) {
    return row.buckets ? fmt::format("{}, {}", bucket_count(row), time) : time;
  };
  std::vector<KeyFigure> figures = {
      {"Predicted best cap", display_cap(predicted.cap_mib) + " MiB",
       best_note(predicted, display_seconds(*predicted.predicted_s) + " predicted")},
      {"Measured best cap", display_cap(measured.cap_mib) + " MiB",
       best_note(measured, display_seconds(*measured.measured_s) + " measured")},
      {"Cost of trusting it", display_percent(answer.regret),
       predicted.cap_mib == measured.cap_mib ? "it names the measured best" : interval_text(answer.regret_ci)},
      {"Tied with the best", fmt::format("{} of {} caps", answer.indifference_set.size(), results.curve.size()),
       fmt::format("{} MiB", fmt::join(cap_texts(answer.indifference_set), ", "))},
      error_figure(results.curve)};
  const auto naive = std::ranges::find(results.strategies, "naive", &StrategyRow::strategy);
  if (naive != results.strategies.end()) {
    figures.push_back(
        {"Against naive", fmt::format("{:.2f} ×", naive->measured_s / *measured.measured_s),
         fmt::format("as fast: {} instead of {}", display_seconds(*measured.measured_s), display_seconds(naive->measured_s))});
  }
  return figures;
}

std::vector<PasteSetting> tune_settings(const Results& results) {
  const std::optional<ModelDescription>& model = results.run.model;
  const bool half = model && model->dtype && *model->dtype == "bf16";
  return paste_settings(std::llround(results.answer->best_predicted.cap_mib * static_cast<double>(kMiB)), half ? 2 : 4,
                        has_own_plan(results) ? results.answer->plan_caps_mib : std::vector<double>());
}

}  // namespace firkin
