#include "firkin/plan/decision.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <tuple>

#include "firkin/plan/best_plan.h"
#include "firkin/stats/summary.h"

namespace firkin {
namespace {

constexpr double kNoDifference = 1e-3;  // of a step: less is not worth a bucket
constexpr double kNoise = 0.03;         // of a block, as a share of a step, until blocks say otherwise
constexpr double kNoiseBlocks = 4;      // as much as so many of them would

// By Outcome.
constexpr std::array<std::string_view, 7> kOutcomes = {
    "gain",          "gain not shown", "default not measured", "same buckets as the default", "communication hidden", "nothing to gain",
    "default faster"};

// What blocks say of caps beside one another: means over the caps are 0.
struct Measured {
  std::vector<double> log_s;
  double variance = 0;  // of each
};

Measured measured_beside(const std::vector<std::vector<double>>& step_s) {
  const size_t caps = step_s.size(), blocks = step_s[0].size();
  std::vector<std::vector<double>> apart(caps);  // a cap's log time, less what the block's caps have in common
  for (size_t block = 0; block < blocks; ++block) {
    double common = 0;
    for (const auto& times : step_s) common += std::log(times.at(block)) / static_cast<double>(caps);
    for (size_t cap = 0; cap < caps; ++cap) apart[cap].push_back(std::log(step_s[cap][block]) - common);
  }
  Measured measured;
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
  return deviation * density + mean * std::erfc(-z / std::numbers::sqrt2) / 2;
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

}  // namespace

Standing weigh(std::span<const CapPrediction> caps, const std::vector<std::vector<double>>& step_s) {
  check_series(caps.size(), step_s);
  std::vector<double> log_s;
  for (const CapPrediction& cap : caps) log_s.push_back(cap.expected_regret);
  double precision = 1 / (kPredictionError * kPredictionError);
  if (!step_s.empty()) {
    const Measured measured = measured_beside(step_s);
    const double shift = mean(log_s), weight = 1 / measured.variance;
    for (size_t i = 0; i < log_s.size(); ++i) {
      log_s[i] = (precision * (log_s[i] - shift) + weight * measured.log_s[i]) / (precision + weight);
    }
    precision += weight;
  }

  Standing standing;
  const double limit = std::ranges::min(log_s) + kNoDifference;
  const auto rank = [&](size_t i) { return std::tuple(log_s[i] > limit, caps[i].buckets, log_s[i]); };
  for (size_t i = 1; i < caps.size(); ++i) {
    if (rank(i) < rank(standing.choice)) standing.choice = i;
  }
  constexpr double kNormal95 = 1.96;
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

std::vector<CapPrediction> caps_to_race(const StepModel& model, const CapOptions& rule, const RaceOptions& options) {
  constexpr int64_t kEffort = 20000;  // buckets
  constexpr double kApart = 1.2;
  std::vector<int64_t> caps = options.wanted;
  const DistinctPlans distinct = distinct_plans(model.profile, rule, {}, std::max<int64_t>(kEffort, 2 * std::ssize(model.profile.bytes)));
  for (const auto& [interval, plan] : distinct.plans) {
    if (std::ssize(plan.buckets) > options.most_buckets || interval.highest_cap_bytes < options.smallest_cap_bytes) continue;
    caps.push_back(roundest_cap({std::max(interval.lowest_cap_bytes, options.smallest_cap_bytes), interval.highest_cap_bytes}));
  }
  if (caps.empty()) caps.push_back(options.smallest_cap_bytes);
  const std::vector<CapPrediction> predicted = predict_steps(model, rule, caps);
  std::vector<CapPrediction> chosen;
  const auto same_buckets = [](const CapPrediction& a, const CapPrediction& b) { return a.lowest_cap_bytes == b.lowest_cap_bytes; };
  const auto add = [&](const CapPrediction& cap) {
    if (std::ranges::none_of(chosen, [&](const CapPrediction& other) { return same_buckets(cap, other); })) chosen.push_back(cap);
  };
  for (size_t i = 0; i < options.wanted.size(); ++i) add(predicted[i]);
  std::vector<CapPrediction> rest(predicted.begin() + static_cast<std::ptrdiff_t>(options.wanted.size()), predicted.end());
  std::ranges::stable_sort(rest, {}, [](const CapPrediction& cap) { return cap.expected_regret; });
  const auto within = [](int64_t a, int64_t b) {
    return static_cast<double>(std::max(a, b)) < kApart * static_cast<double>(std::min(a, b));
  };
  const auto lowest = [&](const CapPrediction& cap) { return std::max(cap.lowest_cap_bytes, options.smallest_cap_bytes); };
  // By all caps that make their buckets: of two wide intervals the roundest caps may be neighbours.
  const auto is_near = [&](const CapPrediction& a, const CapPrediction& b) {
    return within(lowest(a), lowest(b)) && within(a.highest_cap_bytes, b.highest_cap_bytes);
  };
  if (!rest.empty()) {
    const Standing best = weigh(rest);
    std::rotate(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(best.choice),
                rest.begin() + static_cast<std::ptrdiff_t>(best.choice) + 1);
  }
  for (size_t i = 0; i < rest.size() && (i == 0 || chosen.size() < options.count); ++i) {
    if (i == 0 || std::ranges::none_of(chosen, [&](const CapPrediction& cap) { return is_near(cap, rest[i]); })) add(rest[i]);
  }
  std::ranges::sort(chosen, {}, &CapPrediction::cap_bytes);
  return chosen;
}

std::string_view name_of(Outcome outcome) {
  return kOutcomes.at(static_cast<size_t>(outcome));
}

std::optional<Outcome> outcome_named(std::string_view name) {
  const auto found = std::ranges::find(kOutcomes, name);
  if (found == kOutcomes.end()) return std::nullopt;
  return static_cast<Outcome>(found - kOutcomes.begin());
}

bool keeps_default(Outcome outcome) {
  return outcome != Outcome::kGain && outcome != Outcome::kNotShown && outcome != Outcome::kNotMeasured;
}

Decision decide(const DecisionInputs& inputs, double none_predicted_s) {
  constexpr double kHiddenPart = 1.02;        // of a step: what the default may take longer than none
  constexpr double kWorthAnotherLook = 0.03;  // predicted, of a step
  Decision decision{.standing = weigh(inputs.caps, inputs.race_s)};
  const size_t choice = decision.standing.choice;
  const auto& [none_s, default_s, choice_s] = inputs.confirmation;
  if (!none_s.empty() && none_predicted_s > 0) decision.level = median(none_s) / none_predicted_s;
  if (inputs.default_predicted_s) decision.predicted_to_default = inputs.caps[choice].step_s / *inputs.default_predicted_s;
  if (has_blocks(choice_s, default_s)) decision.to_default = paired_ratio(choice_s, default_s);

  if (!inputs.as_default.empty() && inputs.as_default.at(choice)) {
    decision.outcome = Outcome::kSameBuckets;
  } else if (!decision.to_default) {
    decision.outcome = Outcome::kNotMeasured;
  } else if (decision.to_default->interval.high < 1) {
    decision.outcome = Outcome::kGain;
  } else if (decision.to_default->interval.low > 1) {
    decision.outcome = Outcome::kDefaultFaster;
  } else if (has_blocks(default_s, none_s) && paired_ratio(default_s, none_s).interval.high < kHiddenPart) {
    decision.outcome = Outcome::kHidden;
  } else if (decision.predicted_to_default.value_or(1) < 1 - kWorthAnotherLook &&
             decision.to_default->interval.low < 1 - kWorthAnotherLook) {
    decision.outcome = Outcome::kNotShown;
  } else {
    decision.outcome = Outcome::kNothingToGain;
  }
  return decision;
}

}  // namespace firkin
