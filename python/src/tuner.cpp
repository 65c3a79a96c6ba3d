#include "tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <stdexcept>

#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/pytorch_caps.h"
#include "firkin/stats/indifference.h"
#include "firkin/stats/interval.h"
#include "firkin/stats/paired.h"

namespace firkin::python {
namespace {

constexpr size_t kCalibrationSettings = 4;                          // one more than what they are to determine
constexpr CapOptions kDdpRule = {.rule = CapRule::kCloseWhenFull};  // of an explicit bucket_cap_mb: no smaller first bucket

BucketPlan plan_under(const TensorProfile& profile, int64_t cap_bytes) {
  CapOptions options = kDdpRule;
  options.cap_bytes = cap_bytes;
  return assign_buckets(profile.bytes, options);
}

DdpSetting cap_setting(const TensorProfile& profile, int64_t cap_bytes) {
  return {.name = format_bytes(cap_bytes), .cap_bytes = cap_bytes, .plan = plan_under(profile, cap_bytes)};
}

void check_series(const std::vector<std::vector<double>>& step_s, size_t settings) {
  if (step_s.size() == settings + 1) return;
  throw std::invalid_argument(fmt::format("{} series of steps; expected {}", step_s.size(), settings + 1));
}

bool list_makes(const BucketPlan& plan, const TensorProfile& profile) {
  return pytorch_caps(plan, profile.bytes).reproduces_plan;
}

std::vector<DdpSetting> settings_to_calibrate(const TensorProfile& profile, const TunerOptions& options) {
  const size_t tensors = profile.bytes.size();
  std::vector<DdpSetting> settings;
  if (options.lists) {
    const std::vector<BucketPlan> measured_later = {one_tensor_per_bucket(tensors), one_bucket(tensors),
                                                    assign_buckets(profile.bytes, kTorchDefaultCaps)};
    for (const BucketPlan& plan : calibration_plans(profile.bytes, kDdpRule, measured_later)) {
      if (list_makes(plan, profile)) settings.push_back({.name = "calibration", .as_list = true, .plan = plan});
    }
  }
  for (const int64_t parts : {24, 12, 6, 3}) {
    if (settings.size() < kCalibrationSettings)
      settings.push_back(cap_setting(profile, std::max(profile.total_bytes() / parts, options.smallest_cap_bytes)));
  }
  return settings;
}

}  // namespace

Tuner::Tuner(ProfileSection profile, AllReduceTable table, int64_t world_size, TunerOptions options)
    : profile_(std::move(profile)),
      table_(std::move(table)),
      world_size_(world_size),
      alone_(comm_costs(table_, world_size)),
      costs_(alone_),
      options_(std::move(options)) {
  check_profile(profile_.tensors);
  for (const int64_t cap : options_.caps) {
    if (cap < options_.smallest_cap_bytes) {
      throw InputError(fmt::format("a cap of {}; expected at least {}", format_bytes(cap), format_bytes(options_.smallest_cap_bytes)));
    }
  }
  calibration_settings_ = settings_to_calibrate(profile_.tensors, options_);
}

StepModel Tuner::model() const {
  return {.profile = profile_.tensors,
          .costs = costs_,
          .simulation = calibration_.fit.options,
          .none_step_s = none_step_s_,
          .bare_backward_s = profile_.bare_backward_s.value_or(profile_.tensors.backward_s),
          .residual = calibration_.fit.residual};
}

void Tuner::calibrate(const std::vector<std::vector<double>>& step_s) {
  check_series(step_s, calibration_settings_.size());
  const BlockFit fit = fit_blocks(step_s);
  none_step_s_ = fit[0].median;
  const double backward_s = model().bare_backward_s;
  std::vector<MeasuredRun> runs;
  std::vector<BucketPlan> plans;
  for (size_t i = 0; i < calibration_settings_.size(); ++i) {
    const BucketPlan& plan = plans.emplace_back(calibration_settings_[i].plan);
    const double exposed_s = none_step_s_ * (paired_ratio(step_s[i + 1], step_s[0]).ratio - 1);
    runs.push_back({.plan = plan, .end_s = std::max(backward_s + exposed_s, 1e-9)});
    calibration_.runs.push_back({fmt::format("{} buckets", plan.buckets.size()), std::ssize(plan.buckets), fit[i + 1].median});
  }
  calibration_.fit = firkin::calibrate(profile_.tensors, alone_, runs);
  costs_ = calibrated(alone_, calibration_.fit);
  raced_ = caps_to_race(
      model(), kDdpRule,
      {.most_buckets = most_calibrated_buckets(plans), .smallest_cap_bytes = options_.smallest_cap_bytes, .wanted = options_.caps});
  settings_ = {{.name = "torch default", .plan = assign_buckets(profile_.tensors.bytes, kTorchDefaultCaps)}};
  for (const CapPrediction& cap : raced_) settings_.push_back(cap_setting(profile_.tensors, cap.cap_bytes));
}

void Tuner::decide(const std::vector<std::vector<double>>& step_s) {
  check_series(step_s, settings_.size());
  step_s_ = step_s;
  fit_ = fit_blocks(step_s);
  const StepModel model = this->model();
  predicted_s_.clear();
  for (const DdpSetting& setting : settings_) predicted_s_.push_back(predict_step(model, setting.plan));
  dense_ = predict_steps(model, kDdpRule, dense_caps(raced_.front().cap_bytes, profile_.tensors.total_bytes()));

  constexpr size_t kChoosing = 3;
  const size_t blocks = step_s[0].size();
  const size_t choosing = blocks > kFewestSamples ? std::min(blocks / kChoosing, blocks - kFewestSamples) : 0;
  std::vector<std::vector<double>> chose(step_s.size()), judge(step_s.size());
  for (size_t series = 0; series < step_s.size(); ++series) {
    for (size_t block = 0; block < blocks; ++block) {
      const bool chooses = block % kChoosing == 0 && block / kChoosing < choosing;
      (chooses ? chose : judge)[series].push_back(step_s[series][block]);
    }
  }
  DecisionInputs inputs{.caps = raced_, .default_predicted_s = predicted_s_[0]};
  if (choosing > 0) inputs.race_s.assign(chose.begin() + 2, chose.end());
  for (size_t i = 1; i < settings_.size(); ++i) inputs.as_default.push_back(settings_[i].plan == settings_[0].plan);
  best_cap_ = 1 + weigh(raced_, inputs.race_s).choice;
  inputs.confirmation = {.none_s = judge[0], .default_s = judge[1], .choice_s = judge[best_cap_ + 1]};
  decision_ = firkin::decide(inputs, none_step_s_);
}

PairedRatio Tuner::gain_over_default() const {
  if (keeps_default(decision_.outcome)) return {1, {1, 1}};
  return decision_.to_default.value();
}

CurveRow Tuner::curve_row(size_t i) const {
  const SettingFit& fit = fit_[i + 1];
  return {.cap_mib = mib(*settings_[i].cap_bytes),
          .buckets = static_cast<int64_t>(settings_[i].plan.buckets.size()),
          .predicted_s = predicted_s_[i],
          .measured_s = fit.median,
          .measured_ci_s = fit.interval,
          .error = predicted_s_[i] / fit.median - 1};
}

StrategyRow Tuner::strategy_row(const std::string& name, size_t series) const {
  StrategyRow row{.strategy = name, .measured_s = fit_[series].median, .measured_ci_s = fit_[series].interval};
  row.exposed_s = fit_[0].median * (paired_ratio(step_s_[series], step_s_[0]).ratio - 1);
  return row;
}

TuneAnswer Tuner::answer() const {
  TuneAnswer answer;
  const std::vector<std::vector<double>> of_caps(step_s_.begin() + 2, step_s_.end());
  const IndifferenceSet among_caps = indifference_set(of_caps, std::span(fit_).subspan(2));
  const size_t predicted = weigh(raced_).choice;
  answer.best_predicted = curve_row(1 + predicted);
  answer.best_measured = curve_row(1 + among_caps.best);
  for (const size_t i : among_caps.members) answer.indifference_set.push_back(mib(raced_[i].cap_bytes));
  const PairedRatio& to_best = among_caps.to_best[predicted];
  answer.regret = std::max(0.0, to_best.ratio - 1);
  answer.regret_ci = Interval{to_best.interval.low - 1, to_best.interval.high - 1};
  answer.decision = decision_section(decision_, raced_);
  answer.decision.measured_s = measured_s(best_cap_);
  answer.over_default = answer.decision.over_default;
  return answer;
}

void Tuner::add_to(Results& results) const {
  results.profile = profile_;
  results.allreduce = table_;
  results.alpha_beta = fit_alpha_beta(alone_.isolated.points());
  results.calibration = calibration_;
  for (const CapPrediction& point : dense_) {
    CurveRow row{.cap_mib = mib(point.cap_bytes)};
    row.buckets = point.buckets;
    row.predicted_s = point.step_s;
    results.dense_curve.push_back(row);
  }
  StepSamples samples{.settings = {"none"}, .step_s = step_s_};
  results.strategies.push_back(strategy_row("none", 0));
  for (size_t i = 0; i < settings_.size(); ++i) {
    samples.settings.push_back(settings_[i].name);
    if (settings_[i].cap_bytes) {
      results.curve.push_back(curve_row(i));
      continue;
    }
    StrategyRow row = strategy_row(settings_[i].name, i + 1);
    row.buckets = static_cast<int64_t>(settings_[i].plan.buckets.size());
    row.predicted_s = predicted_s_[i];
    results.strategies.push_back(row);
  }
  results.step_samples = std::move(samples);
  results.answer = answer();
}

}  // namespace firkin::python
