#include "firkin/plan/decision.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "firkin/base/units.h"
#include "firkin/plan/best_plan.h"
#include "firkin/plan/ordered_plan.h"
#include "simulator.h"

namespace firkin {
namespace {

constexpr double kNoDifference = 1e-3;  // as a share of a step: a smaller gain is not worth a bucket
constexpr double kNoise = 0.03;         // expected of a block, as a share of a step, before any is measured
constexpr double kNoiseBlocks = 4;      // how many blocks this expectation counts as

// What blocks say about the caps relative to one another: the means over the caps are 0.
struct CapMedians {
  std::vector<double> log_s;
  double variance = 0;  // for each entry
};

CapMedians medians_of_blocks(const std::vector<std::vector<double>>& step_s) {
  const size_t caps = step_s.size(), blocks = step_s[0].size();
  std::vector<std::vector<double>> apart(caps);  // a cap's log time, less what the block's caps have in common
  for (size_t block = 0; block < blocks; ++block) {
    double common = 0;
    for (const auto& times : step_s) common += std::log(times.at(block)) / static_cast<double>(caps);
    for (size_t cap = 0; cap < caps; ++cap) apart[cap].push_back(std::log(step_s[cap][block]) - common);
  }
  CapMedians measured;
  double squares = kNoiseBlocks * kNoise * kNoise, freedom = kNoiseBlocks;
  for (const auto& values : apart) {
    const double middle = median(values);
    measured.log_s.push_back(middle);
    for (const double value : values) squares += (value - middle) * (value - middle);
    freedom += static_cast<double>(blocks - 1);
  }
  constexpr double kOfMedian = std::numbers::pi / 2;  // the variance of a median over that of a mean
  measured.variance = kOfMedian * squares / freedom / static_cast<double>(blocks);
  const double shift = mean(measured.log_s);
  for (double& value : measured.log_s) value -= shift;
  return measured;
}

// E[max(0, x)] of a normal x.
double expected_excess(double mean, double deviation) {
  const double z = mean / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  return std::max(0.0, deviation * density + mean * std::erfc(-z / std::numbers::sqrt2) / 2);  // rounding, far out
}

void check_series(size_t caps, const std::vector<std::vector<double>>& step_s) {
  if (caps == 0) throw std::invalid_argument("a decision among no caps");
  if (step_s.empty()) return;
  const auto fits = [&](const std::vector<double>& series) {
    return !series.empty() && series.size() == step_s[0].size() && std::ranges::all_of(series, [](double s) { return s > 0; });
  };
  if (step_s.size() != caps || !std::ranges::all_of(step_s, fits)) throw std::invalid_argument("a decision on other steps than its caps'");
}

bool has_blocks(const std::vector<double>& a, const std::vector<double>& b) {
  return !a.empty() && a.size() == b.size();
}

// The part of a step without communication that is not backward; 0 where noise made backward longer than the step.
double rest_of_step_s(const StepModel& model, double backward_factor = 1) {
  return std::max(0.0, model.none_step_s - model.bare_backward_s * backward_factor);
}

double step_of_backward(const StepModel& model, double backward_s) {
  if (!(model.none_step_s > 0)) throw std::invalid_argument("predicted steps: expected the time of a step without communication");
  return rest_of_step_s(model) + backward_s;
}

}  // namespace

double predict_step(const StepModel& model, const BucketPlan& plan) {
  return step_of_backward(model, simulate(model.profile, plan, model.costs, model.simulation).end_s);
}

std::vector<PredictedCap> predict_steps(const StepModel& model, const CapOptions& rule, std::span<const int64_t> caps) {
  std::vector<PredictedCap> predictions;
  std::vector<BucketPlan> plans;
  const double range = model_range(model.residual);
  for (const int64_t cap : caps) {
    const CapOptions options = with_cap(rule, cap);
    const BucketPlan& plan = plans.emplace_back(assign_buckets(model.profile.bytes, options));
    const CapInterval same = caps_with_same_buckets(model.profile.bytes, options, plan);
    const double step_s = predict_step(model, plan);
    predictions.push_back({.cap_bytes = cap,
                           .lowest_cap_bytes = same.lowest_cap_bytes,
                           .highest_cap_bytes = same.highest_cap_bytes,
                           .buckets = std::ssize(plan.buckets),
                           .time_s = step_s,
                           .exposed_s = step_s - model.none_step_s,
                           .low_s = step_s / range,
                           .high_s = step_s * range,
                           .expected_regret = 0});
  }
  const std::vector<InputDraw> draws = with_model_errors({}, {.costs = model.costs}, model.residual);
  for (const InputDraw& draw : draws) {
    const TensorProfile profile = slowed(model.profile, draw.compute_factor);
    Simulator evaluator(profile, draw.costs, model.simulation);
    std::vector<double> step_s;
    for (const BucketPlan& plan : plans) {
      step_s.push_back(rest_of_step_s(model, draw.compute_factor) + evaluator.end_s(plan.buckets));
    }
    const double best_s = step_s.empty() ? 0 : std::ranges::min(step_s);
    for (size_t i = 0; i < step_s.size(); ++i) {
      *predictions[i].expected_regret += (step_s[i] / best_s - 1) / static_cast<double>(draws.size());
    }
  }
  return predictions;
}

double predict_ordered_step(const StepModel& model, const BucketPlan& plan) {
  const SimulationOptions options = with_agreement(model.simulation, model.costs);
  return step_of_period(model, simulate_pipeline(model.profile, plan, model.costs, options).period_s);
}

double step_of_period(const StepModel& model, double period_s) {
  return step_of_backward(model, period_s - model.profile.forward_s - model.profile.updates_s());
}

std::vector<BucketPlan> ordered_candidates(const StepModel& model, int64_t most_buckets) {
  constexpr size_t kMost = 3;
  constexpr double kAsGood = 1.05;
  const SearchOptions options = {.most_buckets = most_buckets, .simulation = with_agreement(model.simulation, model.costs)};
  std::vector<BucketPlan> plans = {find_ordered_plan(model.profile, model.costs, options).plan};
  const int64_t total = model.profile.total_bytes();
  for (int64_t cap = kMiB / 4; cap < total; cap *= 2) {
    BucketPlan plan = assign_buckets(model.profile.bytes, {.cap_bytes = cap, .rule = CapRule::kCloseWhenFull, .first_cap_bytes = {}});
    if (static_cast<int64_t>(plan.buckets.size()) > most_buckets) continue;
    plan.launch_order = launch_order_by_need(model.profile, plan, model.costs, options.simulation);
    if (std::ranges::find(plans, plan.buckets, &BucketPlan::buckets) == plans.end()) plans.push_back(std::move(plan));
  }
  std::ranges::stable_sort(plans, {}, [&](const BucketPlan& plan) { return predict_ordered_step(model, plan); });
  const double limit_s = kAsGood * predict_ordered_step(model, plans[0]);
  const auto first_slower =
      std::ranges::find_if(plans, [&](const BucketPlan& plan) { return predict_ordered_step(model, plan) > limit_s; });
  plans.erase(first_slower, plans.end());
  plans.resize(std::min(plans.size(), kMost));
  return plans;
}

std::vector<int64_t> default_caps(std::span<const int64_t> sizes, const CapOptions& rule) {
  constexpr int kCaps = 7;
  const auto total = static_cast<uint64_t>(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}));
  std::vector<int64_t> caps;
  BucketPlan last;
  for (auto cap = static_cast<int64_t>(std::bit_ceil(total)); caps.size() < kCaps && cap > 0; cap /= 2) {
    BucketPlan plan = assign_buckets(sizes, with_cap(rule, cap));
    if (plan == last) continue;
    caps.push_back(cap);
    last = std::move(plan);
  }
  std::ranges::reverse(caps);
  return caps;
}

std::vector<int64_t> dense_caps(int64_t smallest_cap, int64_t total_bytes) {
  constexpr double kPerOctave = 8;
  std::vector<int64_t> caps;
  const double first = std::log2(static_cast<double>(smallest_cap)) - 2;
  const double last = std::log2(static_cast<double>(std::max(total_bytes, smallest_cap))) + 1;
  for (double exponent = std::max(first, 1.0); exponent <= last; exponent += 1 / kPerOctave) {
    caps.push_back(std::llround(std::exp2(exponent)));
  }
  return caps;
}

DistinctCaps distinct_caps(std::vector<int64_t> caps, std::span<const int64_t> sizes, const CapOptions& rule) {
  DistinctCaps result;
  std::ranges::sort(caps);
  for (const int64_t cap : caps) {
    const int64_t measured = add_cap(result.caps, cap, sizes, rule);
    if (measured != cap) result.dropped.push_back({cap, measured});
  }
  return result;
}

int64_t add_cap(std::vector<int64_t>& caps, int64_t cap, std::span<const int64_t> sizes, const CapOptions& rule) {
  const auto plan_under = [&](int64_t bytes) { return assign_buckets(sizes, with_cap(rule, bytes)); };
  const auto same = std::ranges::find(caps, plan_under(cap), plan_under);
  if (same != caps.end()) return *same;
  caps.insert(std::ranges::upper_bound(caps, cap), cap);
  return cap;
}

BucketPlan best_plan(const StepModel& model) {
  return find_best_plan(model.profile, model.costs, {.tolerance = kNoDifference, .simulation = model.simulation}).plan;
}

Standing weigh(std::span<const PredictedCap> caps, const std::vector<std::vector<double>>& step_s, double prediction_error) {
  check_series(caps.size(), step_s);
  std::vector<double> log_s;
  for (const PredictedCap& cap : caps) log_s.push_back(cap.expected_regret.value());
  double precision = 1 / (prediction_error * prediction_error);
  if (!step_s.empty()) {
    const CapMedians measured = medians_of_blocks(step_s);
    const double shift = mean(log_s), weight = 1 / measured.variance;
    for (size_t i = 0; i < log_s.size(); ++i) {
      log_s[i] = (precision * (log_s[i] - shift) + weight * measured.log_s[i]) / (precision + weight);
    }
    precision += weight;
  }

  Standing standing;
  const double limit = std::ranges::min(log_s) + kNoDifference;
  const auto rank = [&](size_t i) { return std::tuple(log_s[i] > limit, caps[i].buckets, log_s[i]); };
  standing.choice = std::ranges::min(std::views::iota(size_t{0}, caps.size()), {}, rank);
  const double deviation = std::sqrt(2 / precision);
  for (size_t i = 0; i < caps.size(); ++i) {
    const double slower = log_s[i] - log_s[standing.choice];
    if (i != standing.choice) standing.expected_regret += expected_excess(-slower, deviation);
    if (slower <= kNormal95 * deviation) standing.tied.push_back(i);
  }
  return standing;
}

bool is_clear(const Standing& standing, size_t blocks) {
  constexpr size_t kFewest = 3;
  constexpr double kLittle = 0.003;
  return blocks >= kFewest && standing.expected_regret <= kLittle;
}

std::vector<PredictedCap> caps_to_race(const StepModel& model, const CapOptions& rule, const RaceOptions& options) {
  constexpr int64_t kEffort = 20000;  // buckets
  constexpr double kApart = 1.2;
  std::vector<int64_t> caps = options.wanted;
  const DistinctPlans distinct = distinct_plans(model.profile, rule, {}, std::max<int64_t>(kEffort, 2 * std::ssize(model.profile.bytes)));
  for (const auto& [interval, plan] : distinct.plans) {
    if (std::ssize(plan.buckets) > options.most_buckets || interval.highest_cap_bytes < options.smallest_cap_bytes) continue;
    caps.push_back(roundest_cap({std::max(interval.lowest_cap_bytes, options.smallest_cap_bytes), interval.highest_cap_bytes}));
  }
  if (caps.empty()) caps.push_back(options.smallest_cap_bytes);
  const std::vector<PredictedCap> predicted = predict_steps(model, rule, caps);
  std::vector<PredictedCap> chosen;
  const auto same_buckets = [](const PredictedCap& a, const PredictedCap& b) { return a.lowest_cap_bytes == b.lowest_cap_bytes; };
  const auto add = [&](const PredictedCap& cap) {
    if (std::ranges::none_of(chosen, [&](const PredictedCap& other) { return same_buckets(cap, other); })) chosen.push_back(cap);
  };
  for (size_t i = 0; i < options.wanted.size(); ++i) add(predicted[i]);
  std::vector<PredictedCap> rest(predicted.begin() + static_cast<std::ptrdiff_t>(options.wanted.size()), predicted.end());
  std::ranges::stable_sort(rest, {}, [](const PredictedCap& cap) { return cap.expected_regret.value(); });
  const auto within = [](int64_t a, int64_t b) {
    return static_cast<double>(std::max(a, b)) < kApart * static_cast<double>(std::min(a, b));
  };
  const auto lowest = [&](const PredictedCap& cap) { return std::max(cap.lowest_cap_bytes, options.smallest_cap_bytes); };
  // Compares whole intervals, because the roundest caps of two wide intervals may be neighbours.
  const auto is_near = [&](const PredictedCap& a, const PredictedCap& b) {
    return within(lowest(a), lowest(b)) && within(a.highest_cap_bytes, b.highest_cap_bytes);
  };
  if (!rest.empty()) {
    const auto best = rest.begin() + static_cast<std::ptrdiff_t>(weigh(rest).choice);
    std::rotate(rest.begin(), best, best + 1);
  }
  for (size_t i = 0; i < rest.size() && (i == 0 || chosen.size() < options.count); ++i) {
    if (i == 0 || std::ranges::none_of(chosen, [&](const PredictedCap& cap) { return is_near(cap, rest[i]); })) add(rest[i]);
  }
  std::ranges::sort(chosen, {}, &PredictedCap::cap_bytes);
  return chosen;
}

bool is_worth_setting(const PairedRatio& to_other) {
  return faster_of(to_other) == Faster::kThis && to_other.ratio <= 1 - kLeastGain;
}

Faster faster_of(const PairedRatio& this_to_other) {
  if (this_to_other.interval.high < 1) return Faster::kThis;
  return this_to_other.interval.low > 1 ? Faster::kOther : Faster::kNotToldApart;
}

bool keeps_tried(const PairedRatio& tried_to_used) {
  return faster_of(tried_to_used) != Faster::kOther;
}

bool keeps_default(Outcome outcome) {
  return outcome != Outcome::kGain && outcome != Outcome::kNotShown && outcome != Outcome::kNotMeasured;
}

Certainty certainty_of(const Decision& decision) {
  if (decision.options && keeps_default(decision.outcome)) return Certainty::kShown;
  switch (decision.outcome) {
    case Outcome::kGain:
      return Certainty::kShown;
    case Outcome::kNotShown:
    case Outcome::kNotMeasured:
      return Certainty::kLikely;
    case Outcome::kNotToldApart:
      return Certainty::kNotToldApart;
    case Outcome::kSameBuckets:
    case Outcome::kHidden:
    case Outcome::kNothingToGain:
    case Outcome::kDefaultFaster:
      break;
  }
  return Certainty::kNothingToGain;
}

Outlook outlook(std::span<const double> step_s, std::span<const double> reference_s) {
  constexpr double kStrict = 0.99;
  const Interval strict = paired_ratio(step_s, reference_s, kStrict).interval;
  if (strict.high < 1 || strict.low > 1 - kLeastGain) return {.settled = true, .blocks_needed = static_cast<double>(step_s.size())};
  const PairedRatio gain = paired_ratio(step_s, reference_s);
  if (!std::isfinite(gain.interval.high)) return {.blocks_needed = static_cast<double>(kFewestSamples)};
  // The width falls with the root of the number of blocks.
  const double effect = std::log(gain.ratio), width = std::log(gain.interval.high / gain.interval.low) / 2;
  const double enough = std::max(-effect, effect - std::log(1 - kLeastGain));
  const double more = std::max(1.0, width / enough);
  return {.blocks_needed = static_cast<double>(step_s.size()) * more * more};
}

namespace {

// What measured steps with the cap and with PyTorch's default say about the cap.
Outcome outcome_of(const Confirmation& steps, const PairedRatio& over_default, double predicted_to_default) {
  // The default's communication is hidden if its step is within this of none's.
  constexpr double kHiddenPart = 1.02;
  const Interval& interval = over_default.interval;
  if (is_worth_setting(over_default)) return Outcome::kGain;
  const Faster faster = faster_of(over_default);
  if (faster == Faster::kThis) return Outcome::kNothingToGain;
  if (faster == Faster::kOther) return Outcome::kDefaultFaster;
  if (has_blocks(steps.default_s, steps.none_s) && paired_ratio(steps.default_s, steps.none_s).interval.high < kHiddenPart)
    return Outcome::kHidden;
  if (interval.low > 1 - kLeastGain) return Outcome::kNothingToGain;
  const bool is_refuted = interval.low > predicted_to_default + kPredictionError;
  if (predicted_to_default < 1 - kWorthMeasuring && interval.low < 1 - kWorthMeasuring && !is_refuted) return Outcome::kNotShown;
  return Outcome::kNotToldApart;
}

bool is_undecided(Outcome outcome) {
  return outcome == Outcome::kNotShown || outcome == Outcome::kNotToldApart;
}

// The one thing that limits the answer. step_s: the steps of what is recommended.
std::optional<NextStep> next_step_of(const Decision& decision, const DecisionInputs& inputs, const std::vector<double>& step_s) {
  constexpr double kMostly = 2;  // a step over one without communication, from which on communication is most of it
  if (decision.blocks_needed > kMostTimesMoreBlocks * static_cast<double>(decision.blocks)) return NextStep::kLessNoise;
  if (decision.blocks_needed) return inputs.ended == EndOfBlocks::kLimit ? NextStep::kMoreBlocks : NextStep::kMoreTime;
  const std::vector<double>& none_s = inputs.confirmation.none_s;
  return has_blocks(step_s, none_s) && paired_ratio(step_s, none_s).ratio >= kMostly ? std::optional(NextStep::kSendLess) : std::nullopt;
}

}  // namespace

std::optional<PairedRatio> recommended_over_default(const Decision& decision) {
  if (decision.all_over_default) return decision.all_over_default;
  return keeps_default(decision.outcome) ? std::nullopt : decision.over_default;
}

Decision decide(const DecisionInputs& inputs, double none_predicted_s) {
  const Standing& standing = inputs.standing;
  const size_t choice = standing.choice;
  const PredictedCap& cap = inputs.caps[choice];
  Decision decision{.cap_bytes = cap.cap_bytes,
                    .lowest_cap_bytes = cap.lowest_cap_bytes,
                    .predicted_s = cap.time_s,
                    .expected_regret = standing.expected_regret};
  if (cap.highest_cap_bytes != std::numeric_limits<int64_t>::max()) decision.highest_cap_bytes = cap.highest_cap_bytes;
  for (const size_t i : standing.tied) decision.tied_bytes.push_back(inputs.caps[i].cap_bytes);
  const Confirmation& steps = inputs.confirmation;
  if (!steps.none_s.empty() && none_predicted_s > 0) decision.level = median(steps.none_s) / none_predicted_s;
  if (inputs.default_predicted_s) decision.predicted_to_default = cap.time_s / *inputs.default_predicted_s;
  if (has_blocks(steps.choice_s, steps.default_s)) decision.over_default = paired_ratio(steps.choice_s, steps.default_s);
  if (!inputs.as_default.empty() && inputs.as_default.at(choice)) {
    decision.outcome = Outcome::kSameBuckets;
  } else if (decision.over_default) {
    decision.outcome = outcome_of(steps, *decision.over_default, decision.predicted_to_default.value_or(1));
  }

  const bool kept = keeps_default(decision.outcome);
  const std::vector<double>* recommended_s = kept ? &steps.default_s : &steps.choice_s;
  const std::vector<double>& with_options_s = kept ? steps.default_with_options_s : steps.choice_with_options_s;
  if (has_blocks(with_options_s, *recommended_s)) {
    const PairedRatio gain = paired_ratio(with_options_s, *recommended_s);
    if (is_worth_setting(gain)) {
      decision.options = inputs.options;
      decision.options_over_none = gain;
      if (has_blocks(with_options_s, steps.default_s)) decision.all_over_default = paired_ratio(with_options_s, steps.default_s);
      recommended_s = &with_options_s;
    }
  }
  decision.blocks = std::ssize(steps.choice_s);
  if (is_undecided(decision.outcome)) decision.blocks_needed = outlook(steps.choice_s, steps.default_s).blocks_needed;
  decision.next_step = next_step_of(decision, inputs, *recommended_s);
  return decision;
}

}  // namespace firkin
