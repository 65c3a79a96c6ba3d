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
constexpr double kWorthAList = 0.01;                                // of a step
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
      costs_(comm_costs(table_, world_size)),
      options_(std::move(options)) {
  check_profile(profile_.tensors);
  for (const int64_t cap : options_.caps) {
    if (cap < options_.smallest_cap_bytes) {
      throw InputError(fmt::format("a cap of {}; expected at least {}", format_bytes(cap), format_bytes(options_.smallest_cap_bytes)));
    }
  }
  calibration_settings_ = settings_to_calibrate(profile_.tensors, options_);
}

StepModel Tuner::model(double none_step_s) const {
  return {.profile = profile_.tensors,
          .costs = costs_,
          .simulation = calibration_.fit.options,
          .none_step_s = none_step_s,
          .bare_backward_s = profile_.bare_backward_s.value_or(profile_.tensors.backward_s)};
}

void Tuner::calibrate(const std::vector<std::vector<double>>& step_s) {
  check_series(step_s, calibration_settings_.size());
  const BlockFit fit = fit_blocks(step_s);
  const double none_s = fit[0].median;
  const double backward_s = model(none_s).bare_backward_s;
  for (size_t i = 0; i < calibration_settings_.size(); ++i) {
    const double exposed_s = none_s * (paired_ratio(step_s[i + 1], step_s[0]).ratio - 1);
    calibration_runs_.push_back({.plan = calibration_settings_[i].plan, .end_s = std::max(backward_s + exposed_s, 1e-9)});
    const auto buckets = static_cast<int64_t>(calibration_settings_[i].plan.buckets.size());
    calibration_.runs.push_back({fmt::format("{} buckets", buckets), buckets, fit[i + 1].median});
  }
  calibration_.fit = firkin::calibrate(profile_.tensors, costs_, calibration_runs_);

  const StepModel calibrated = model(none_s);
  std::vector<BucketPlan> plans;
  for (const DdpSetting& setting : calibration_settings_) plans.push_back(setting.plan);
  const int64_t calibrated_buckets = most_calibrated_buckets(plans);
  settings_ = {{.name = "torch default", .plan = assign_buckets(profile_.tensors.bytes, kTorchDefaultCaps)}};
  for (DdpSetting& setting : caps_to_measure(calibrated, calibrated_buckets)) settings_.push_back(std::move(setting));
  if (!options_.lists) return;
  const BucketPlan best = best_plan(calibrated, {});
  const auto makes_it = [&](const DdpSetting& setting) { return setting.plan == best; };
  if (std::ranges::any_of(settings_, makes_it) || !list_makes(best, profile_.tensors)) return;
  if (static_cast<int64_t>(best.buckets.size()) > calibrated_buckets) return;
  if (!is_faster_beyond_error(calibrated, best, settings_[1].plan, calibration_.fit.residual)) return;
  settings_.push_back({.name = "planned", .as_list = true, .plan = best});
}

std::vector<DdpSetting> Tuner::caps_to_measure(const StepModel& model, int64_t most_buckets) const {
  const TensorProfile& profile = profile_.tensors;
  std::vector<int64_t> candidates = dense_caps(std::max<int64_t>(profile.total_bytes() / 256, 4), profile.total_bytes());
  std::erase_if(candidates, [&](int64_t cap) { return cap < options_.smallest_cap_bytes; });
  if (candidates.empty()) candidates.push_back(options_.smallest_cap_bytes);
  const std::vector<CapPrediction> curve = predict_steps(model, kDdpRule, candidates);
  const int64_t best = curve[best_prediction(curve, most_buckets)].cap_bytes;
  std::vector<int64_t> wanted = options_.caps;
  if (wanted.empty()) wanted = {std::max(best / 2, options_.smallest_cap_bytes), best * 2};
  std::vector<int64_t> caps = {best};
  for (const int64_t cap : wanted) add_cap(caps, cap, profile.bytes, kDdpRule);
  std::vector<DdpSetting> settings;
  for (const int64_t cap : caps) settings.push_back(cap_setting(profile, cap));
  return settings;
}

void Tuner::drop_plan() {
  if (plan() != nullptr) settings_.pop_back();
}

const DdpSetting* Tuner::plan() const {
  return !settings_.empty() && settings_.back().as_list ? &settings_.back() : nullptr;
}

const DdpSetting& Tuner::best_cap() const {
  return settings_.at(best_cap_);
}

double Tuner::measured_s(size_t i) const {
  return fit_.at(i + 1).median;
}

void Tuner::decide(const std::vector<std::vector<double>>& step_s) {
  check_series(step_s, settings_.size());
  step_s_ = step_s;
  fit_ = fit_blocks(step_s);
  const StepModel model = this->model(fit_[0].median);
  predicted_s_.clear();
  for (const DdpSetting& setting : settings_) predicted_s_.push_back(predict_step(model, setting.plan));
  const int64_t smallest = *settings_[1].cap_bytes;
  dense_ = predict_steps(model, kDdpRule, dense_caps(smallest, profile_.tensors.total_bytes()));

  const size_t caps_end = settings_.size() - (plan() != nullptr ? 1 : 0);
  std::vector<CapPrediction> caps;
  for (size_t i = 1; i < caps_end; ++i) {
    caps.push_back({*settings_[i].cap_bytes, static_cast<int64_t>(settings_[i].plan.buckets.size()), predicted_s_[i]});
  }
  predicted_cap_ = 1 + best_prediction(caps);
  const std::vector<std::vector<double>> of_caps(step_s.begin() + 2, step_s.begin() + 1 + static_cast<std::ptrdiff_t>(caps_end));
  const IndifferenceSet among_caps = indifference_set(of_caps, std::span(fit_).subspan(2, of_caps.size()));
  measured_cap_ = 1 + among_caps.best;
  predicted_to_measured_ = among_caps.to_best[predicted_cap_ - 1];
  tied_caps_.clear();
  for (const size_t i : among_caps.members) tied_caps_.push_back(1 + i);
  best_cap_ = std::ranges::find(tied_caps_, predicted_cap_) != tied_caps_.end() ? predicted_cap_ : measured_cap_;

  const IndifferenceSet among_all = indifference_set({step_s.begin() + 1, step_s.end()}, std::span(fit_).subspan(1));
  tied_ = among_all.members;
  const bool worth_a_list = plan() != nullptr && predicted_s_.back() < predicted_s_[predicted_cap_] * (1 - kWorthAList);
  const auto is_tied = [&](size_t i) { return std::ranges::find(tied_, i) != tied_.end(); };
  const size_t preferred = worth_a_list && is_tied(settings_.size() - 1) ? settings_.size() - 1 : best_cap_;
  choice_ = is_tied(preferred) ? preferred : among_all.best;
  if (settings_[choice_].cap_bytes) best_cap_ = choice_;  // one cap, not two
}

PairedRatio Tuner::gain_over_default() const {
  return paired_ratio(step_s_.at(choice_ + 1), step_s_.at(1));
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
  answer.best_predicted = curve_row(predicted_cap_);
  answer.best_measured = curve_row(measured_cap_);
  for (const size_t i : tied_caps_) answer.indifference_set.push_back(mib(*settings_[i].cap_bytes));
  answer.regret = std::max(0.0, predicted_to_measured_.ratio - 1);
  answer.regret_ci = Interval{predicted_to_measured_.interval.low - 1, predicted_to_measured_.interval.high - 1};
  const auto gain = [&](size_t i) {
    const PairedRatio ratio = paired_ratio(step_s_[i + 1], step_s_[1]);
    return Gain{ratio.ratio, ratio.interval};
  };
  answer.over_default = gain(predicted_cap_);
  if (plan() == nullptr) return answer;
  answer.planned_over_default = gain(settings_.size() - 1);
  for (const int64_t bytes : bucket_bytes(plan()->plan, profile_.tensors.bytes)) answer.plan_mib.push_back(mib(bytes));
  answer.plan_caps_mib = pytorch_caps(plan()->plan, profile_.tensors.bytes).mib;
  return answer;
}

void Tuner::add_to(Results& results) const {
  results.profile = profile_;
  results.allreduce = table_;
  results.alpha_beta = fit_alpha_beta(costs_.isolated.points());
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
  const std::string odds =
      odds_of_choice(model(fit_[0].median), table_, world_size_, calibration_runs_, calibration_.fit, kDdpRule, *best_cap().cap_bytes);
  if (!odds.empty()) results.notes.push_back(odds);
}

}  // namespace firkin::python
