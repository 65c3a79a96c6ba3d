// The result of `firkin predict` for a person.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "firkin/base/units.h"
#include "predict_numbers.h"
#include "predict_output.h"

namespace firkin::cli {
namespace {

std::string range_text(const TimeRange& range) {
  return fmt::format("{} - {}", format_seconds(range.low_s), format_seconds(range.high_s));
}

std::string stragglers_text(const PredictResult& result) {
  if (!result.stragglers) return "";
  const StragglerPrediction& stragglers = *result.stragglers;
  return fmt::format("backward is that of the slowest of {} ranks, expected {:.1f} % above the\nmedian one's {} ({} measured times)\n",
                     result.world_size, 100 * (stragglers.slowest.factor - 1), format_seconds(stragglers.median_backward_s),
                     stragglers.samples);
}

// What was not measured, and what the ranges span. Nothing when all was.
std::string extrapolated_text(const PredictResult& result) {
  if (!result.ranges) return "";
  std::string text = "\n";
  if (result.extrapolation) {
    text += fmt::format("EXTRAPOLATED: {} ranks were not measured. Fitted to {} ranks;\nthree models: ring, tree, pipelined tree.\n",
                        result.world_size, fmt::join(result.extrapolation->fitted_worlds, ", "));
  }
  if (result.stragglers && result.stragglers->slowest.beyond_samples) {
    text += fmt::format(
        "EXTRAPOLATED: the slowest of {} ranks, from {} times: {:.1f} % above the\nmedian one as measured, {:.1f} % with an exponential "
        "tail.\n",
        result.world_size, result.stragglers->samples, 100 * (result.stragglers->slowest.factor - 1),
        100 * (result.stragglers->slowest.tail_factor - 1));
  }
  return text + "Ranges are the spread between these, which is not a confidence interval.\n";
}

std::string head_text(const PredictResult& result) {
  std::string text =
      fmt::format("{} tensors, {} of gradients, backward {}; {} ranks\nrule {}\n", result.profile.names.size(),
                  format_bytes(gradient_bytes(result)), format_seconds(result.profile.backward_s), result.world_size, result.rule_name);
  const double beta = result.alpha_beta.beta_s_per_byte;
  text += fmt::format("a(x) fits {} + x / ({}), with a median error of {:.1f} %\n", format_seconds(result.alpha_beta.alpha_s),
                      beta > 0 ? fmt::format("{:.3g} GB/s", 1e-9 / beta) : "no limit", 100 * result.alpha_beta.median_relative_error);
  if (result.curve_quality) {
    text += fmt::format("leaving out a size of a(x): the table misses it by {:.1f} %, at worst {:.1f} %\n",
                        100 * result.curve_quality->median_relative_error, 100 * result.curve_quality->largest_relative_error);
  }
  return text + stragglers_text(result) + extrapolated_text(result);
}

std::string curve_text(const PredictResult& result) {
  std::string text = fmt::format("\n{:>10} {:>8} {:>10} {:>10}{}\n", "cap MiB", "buckets", "backward", "exposed",
                                 result.ranges ? "   extrapolated, spread" : "");
  const auto least = std::ranges::min_element(result.curve, {}, &SweepPoint::backward_s);
  for (size_t i = 0; i < result.curve.size(); ++i) {
    const SweepPoint& point = result.curve[i];
    text += fmt::format("{:>10.6g} {:>8} {:>10} {:>10}", mib(point.cap_bytes), point.buckets, format_seconds(point.backward_s),
                        format_seconds(point.exposed_s));
    if (result.ranges) text += "   " + range_text(result.ranges->curve[i]);
    text += result.curve.begin() + static_cast<std::ptrdiff_t>(i) == least ? " <\n" : "\n";
  }
  return text;
}

std::string minimax_text(const Extrapolation& extrapolation) {
  const MinimaxRegretCap& minimax = extrapolation.minimax;
  std::string text = fmt::format(
      "Safest uniform cap: {:.6g} MiB ({} buckets); at most {:.1f} % above the best,\n"
      "whichever of the models is right (extrapolated):\n",
      mib(minimax.cap_bytes), minimax.plan.buckets.size(), 100 * minimax.largest_regret);
  for (size_t i = 0; i < extrapolation.forms.size(); ++i) {
    const FormPrediction& form = extrapolation.forms[i];
    text += fmt::format("  {:<15} {:>10}; its own best cap {:.6g} MiB: {}\n", name_of(form.form), format_seconds(minimax.end_s[i]),
                        mib(form.best.cap_bytes), format_seconds(form.best.timeline.end_s));
  }
  return text;
}

// "1 - 12" or "3": tensors by their place in gradient-ready order, from 1.
std::string tensors_text(const Bucket& bucket) {
  const int64_t first = bucket.first + 1;
  return bucket.count == 1 ? fmt::format("{}", first) : fmt::format("{} - {}", first, first + bucket.count - 1);
}

// The buckets of the best plan; of many, the first and the last.
std::string buckets_text(const PredictResult& result) {
  constexpr size_t kMost = 12, kFirst = 6, kLast = 4;
  const std::vector<BucketSpan>& spans = result.best_plan.timeline.buckets;
  std::string text = fmt::format("{:>10} {:>10} {:>12} {:>10} {:>10} {:>10}\n", "bucket", "bytes", "tensors", "ready", "sent", "reduced");
  for (size_t k = 0; k < spans.size(); ++k) {
    if (spans.size() > kMost && k >= kFirst && k + kLast < spans.size()) {
      if (k == kFirst) text += fmt::format("{:>10}\n", "...");
      continue;
    }
    const Bucket& bucket = result.best_plan.plan.buckets[static_cast<size_t>(spans[k].bucket)];
    text += fmt::format("{:>10} {:>10} {:>12} {:>10} {:>10} {:>10}\n", k + 1, format_bytes(spans[k].bytes), tensors_text(bucket),
                        format_seconds(spans[k].ready_s), format_seconds(spans[k].start_s), format_seconds(spans[k].end_s));
  }
  return text;
}

// bucket_cap_mb_list as Python, in lines of at most 80 columns.
std::string pytorch_text(const PredictResult& result) {
  constexpr size_t kMost = 64, kWidth = 80;
  if (!result.pytorch.reproduces_plan) return "";
  const std::vector<double>& caps = result.pytorch.mib;
  if (caps.size() > kMost) return "  as bucket_cap_mb_list for PyTorch 2.13 and later: see --json\n";
  std::string text = "  for PyTorch 2.13 and later:\n", line = "  bucket_cap_mb_list=[";
  for (size_t k = 0; k < caps.size(); ++k) {
    const std::string cap = fmt::format("{}{}", caps[k], k + 1 < caps.size() ? "," : "]");
    if (line.size() + cap.size() + 1 > kWidth) {
      text += line + "\n";
      line = "   ";
    }
    line += (line.back() == '[' ? "" : " ") + cap;
  }
  return text + line + "\n";
}

std::string best_text(const PredictResult& result) {
  const UniformCap& uniform = result.best_uniform;
  std::string text =
      fmt::format("\nBest uniform cap: {:.6g} MiB ({} buckets): {}, {} exposed\n", mib(uniform.cap_bytes), uniform.plan.buckets.size(),
                  format_seconds(uniform.timeline.end_s), format_seconds(uniform.timeline.exposed_s));
  if (result.ranges) text += fmt::format("  extrapolated: {}\n", range_text(result.ranges->best_uniform));
  if (!uniform.exhaustive) text += "  (not every cap was tried: there are too many)\n";
  const Timeline& plan = result.best_plan.timeline;
  constexpr double kLeastShownGain = 5e-5;
  const std::string gain_text = plan_gain(result) < kLeastShownGain ? "no faster" : fmt::format("{:.2f} % faster", 100 * plan_gain(result));
  text += fmt::format("Best plan{}: {} buckets: {}, {} exposed; {}\n", result.best_plan.exact ? "" : " found", plan.buckets.size(),
                      format_seconds(plan.end_s), format_seconds(plan.exposed_s), gain_text);
  if (result.ranges) text += fmt::format("  extrapolated: {}\n", range_text(result.ranges->best_plan));
  text += buckets_text(result) + pytorch_text(result);
  if (result.extrapolation) text += minimax_text(*result.extrapolation);
  return text;
}

std::string baselines_text(const PredictResult& result) {
  std::string text = fmt::format("\n{:<15} {:>8} {:>10} {:>10} {:>9}{}\n", "baseline", "buckets", "backward", "exposed", "regret",
                                 result.ranges ? "   extrapolated" : "");
  for (size_t i = 0; i < result.baselines.size(); ++i) {
    const Baseline& baseline = result.baselines[i];
    text += fmt::format("{:<15} {:>8} {:>10} {:>10} {:>7.1f} %{}\n", baseline.name, baseline.plan.buckets.size(),
                        format_seconds(baseline.timeline.end_s), format_seconds(baseline.timeline.exposed_s), 100 * regret_of(baseline),
                        result.ranges ? "   " + range_text(result.ranges->baselines[i]) : "");
  }
  return text;
}

std::string analytic_text(const PredictResult& result) {
  if (!result.analytic) return "";
  const EqualBuckets& even = result.analytic->even;
  return fmt::format("\nClosed form (equal buckets, gradients at an even rate): {:.4g} MiB,\n{:.3g} buckets, {} exposed\n",
                     mib(even.bucket_bytes), even.count, format_seconds(even.exposed_s));
}

std::string sensitivity_text(const SensitivityPrediction& sensitivity) {
  std::string text = fmt::format("\n{:<14} {:>7} {:>10} {:>8} {:>10} {:>10} {:>9}\n", "influence", "factor", "cap MiB", "buckets",
                                 "backward", "exposed", "keep cap");
  for (const SensitivityPoint& point : sensitivity.points) {
    const double lost = std::max(0.0, point.kept_backward_s / point.backward_s - 1);
    text += fmt::format("{:<14} {:>7.4g} {:>10.5g} {:>8} {:>10} {:>10} {:>+7.1f} %\n", name_of(point.influence), point.factor,
                        mib(point.cap_bytes), point.buckets, format_seconds(point.backward_s), format_seconds(point.exposed_s), 100 * lost);
  }
  text += "keep cap: what staying with the cap that is best at factor 1 would cost there\n\n";
  for (const Elasticity& elasticity : sensitivity.elasticities) {
    const size_t colon = std::min(elasticity.words.find(": "), elasticity.words.size());
    text += elasticity.words.substr(0, colon) + "\n " + elasticity.words.substr(std::min(colon + 1, elasticity.words.size())) + "\n";
  }
  return text;
}

}  // namespace

std::string predict_table(const PredictResult& result) {
  std::string text = head_text(result) + curve_text(result) + best_text(result) + baselines_text(result) + analytic_text(result);
  if (result.sensitivity) text += sensitivity_text(*result.sensitivity);
  return text;
}

SensitivityReport sensitivity_report(const PredictResult& result) {
  SensitivityReport report;
  report.workload = fmt::format("{} tensors, {} of gradients, backward {}, {} ranks", result.profile.names.size(),
                                format_bytes(gradient_bytes(result)), format_seconds(result.profile.backward_s), result.world_size);
  if (result.ranges) {
    report.notes.push_back(
        fmt::format("Extrapolated: not all of this was measured at {} ranks. The times at the operating point spread over {}, and those "
                    "around it no less.",
                    result.world_size, range_text(result.ranges->best_uniform)));
  }
  report.points = result.sensitivity->points;
  report.map = result.sensitivity->map;
  report.elasticities = result.sensitivity->elasticities;
  return report;
}

}  // namespace firkin::cli
