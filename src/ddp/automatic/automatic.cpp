#include "automatic.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "comm/across_ranks.h"
#include "comm/timed_visit.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/plan/decision.h"

namespace firkin {
namespace {

constexpr int64_t kWarmUpSteps = 2;
constexpr double kWorthATrial = 0.005;         // predicted gain, as a share of a step
constexpr double kShortestPeriod = 1e-9;       // seconds: no clock says less, and ratios need more than 0
constexpr double kLongestDelay = 0.25;         // seconds for all-reduces between two steps
constexpr int64_t kLargestMemory = 64 * kMiB;  // for their buffers

// A step's times in the form in which ranks exchange them: first those of the whole step, then each parameter's ready
// time, then each parameter's first use. The time that launches took is taken off, because it depends on the plan. A
// gradient without a ready time was complete at the end of backward.
constexpr size_t kTimesOfTheWhole = 4;
std::vector<double> row_of(const WatchedStep& step) {
  const BackwardTimes& backward = step.backward;
  std::vector<double> launching_s = {0};  // [k]: what the first k launches took
  for (const auto& [from, to] : backward.launching) launching_s.push_back(launching_s.back() + seconds_between(from, to));
  const double launch_s = backward.launches > 0 ? launching_s.back() / static_cast<double>(backward.launches) : 0;
  const double backward_s = seconds_between(backward.began, backward.ended) - launching_s.back();
  const std::vector<double> forward_s = step.forward.seconds();
  std::vector<double> row = {seconds_between(step.before, step.end), backward_s, launch_s, forward_s.empty() ? 0 : forward_s.back()};
  for (const auto& ready : backward.ready) {
    row.push_back(ready ? seconds_between(backward.began, ready->at) - launching_s[ready->launches] : backward_s);
  }
  for (const int64_t pause : step.forward.first_use) row.push_back(forward_s[static_cast<size_t>(pause)]);
  row.resize(kTimesOfTheWhole + 2 * backward.ready.size());
  return row;
}

TrainingTimes median_times(const std::vector<std::vector<double>>& rows) {
  const std::vector<double> medians = column_medians(rows);
  const auto needed = medians.begin() + static_cast<std::ptrdiff_t>((medians.size() + kTimesOfTheWhole) / 2);
  return {.ready_s = {medians.begin() + kTimesOfTheWhole, needed},
          .needed_s = {needed, medians.end()},
          .backward_s = medians[1],
          .forward_s = medians[3],
          .launch_s = medians[2],
          .step_s = std::max(medians[0], kShortestPeriod)};
}

// The sizes of all-reduces to sample, in bytes of whole gradients.
std::vector<TimedSize> sizes_to_sample(int64_t gradient_bytes, int64_t element_bytes, int64_t wire_bytes) {
  std::vector<TimedSize> sizes;
  for (const int64_t bytes : allreduce_sizes(gradient_bytes)) {
    const int64_t elements = std::max<int64_t>(bytes / element_bytes, 1);
    const bool is_new = sizes.empty() || sizes.back().bytes < elements * element_bytes;
    if (is_new && elements * wire_bytes <= kLargestMemory) sizes.push_back({.bytes = elements * element_bytes});
  }
  return sizes;
}

std::string percent(double ratio) {
  return fmt::format("{:+.1f} %", 100 * (ratio - 1));
}

}  // namespace

void check_automatic(const DataParallelOptions& options, const std::vector<NamedTensor>& parameters) {
  const AutomaticBuckets& buckets = *options.buckets;
  const Strategy& strategy = options.strategy;
  if (strategy.grouping != Grouping::kCap || strategy.launch != Launch::kWhenReady || strategy.shards) {
    throw InputError(fmt::format("automatic buckets with the strategy {}; expected bucketed or ordered", strategy.name));
  }
  if (options.plan) throw InputError("automatic buckets and a plan are both set; expected one");
  const auto at_least = [](const char* name, int64_t value, int64_t least) {
    if (value < least) throw InputError(fmt::format("automatic buckets: {} is {}; expected at least {}", name, value, least));
  };
  if (!(buckets.budget_s > 0)) throw InputError(fmt::format("automatic buckets: budget_s is {}; expected more than 0", buckets.budget_s));
  at_least("profile_steps", buckets.profile_steps, 3);
  at_least("trial_pairs", buckets.trial_pairs, static_cast<int64_t>(kFewestSamples));
  at_least("trial_steps", buckets.trial_steps, 2);
  for (const NamedTensor& parameter : parameters) {
    if (parameter.tensor.device() == parameters[0].tensor.device()) continue;
    throw InputError(fmt::format("automatic buckets: {} is on {}, {} on {}; expected one device, whose clock times the gradients",
                                 parameters[0].name, parameters[0].tensor.device().str(), parameter.name, parameter.tensor.device().str()));
  }
}

AllReduceSampler::AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire,
                                   double budget_s)
    : group_(std::move(group)),
      sizes_(sizes_to_sample(gradient_bytes, element_bytes, static_cast<int64_t>(wire.dtype().itemsize()))),
      schedule_(sizes_, {.seconds = budget_s,
                         // No more memory than gradients and buckets take together.
                         .queue_bytes = std::min(2 * gradient_bytes, kLargestMemory),
                         .checks = false,
                         .delay_s = kLongestDelay}),
      buffers_(queue_buffers(schedule_, sizes_, element_bytes, wire)) {}

bool AllReduceSampler::measure_some() {
  const at::NoGradGuard no_grad;
  const double before_s = schedule_.elapsed_s();
  while (schedule_.next()) {
    const double delay_s = schedule_.elapsed_s() - before_s;
    if (delay_s > 0 && delay_s + schedule_.expected_s() > kLongestDelay) return false;
    run_visit(group_, start_summing, buffers_[schedule_.next()->size], schedule_, [](std::span<const at::Tensor> /*queue*/) { return 0; });
  }
  return true;
}

void PlanTrial::step_ended() {
  if (++done_ < steps_.warmup_steps + steps_.timed_steps) return;
  done_ = 0;
  visited_.push_back(schedule_.next()->setting);
  schedule_.tell();
}

PlanTrial::Verdict PlanTrial::judge(std::span<const double> period_s) const {
  std::array<std::vector<double>, 2> block_s;  // old, new
  const auto warmup = static_cast<size_t>(steps_.warmup_steps), timed = static_cast<size_t>(steps_.timed_steps);
  for (size_t i = 0; i < visited_.size(); ++i) {
    block_s[visited_[i]].push_back(median(period_s.subspan(i * (warmup + timed) + warmup, timed)));
  }
  const BlockFit fit = fit_blocks({block_s[0], block_s[1]});
  return {.new_to_old = paired_ratio(block_s[1], block_s[0]), .old_s = fit[0].median, .new_s = fit[1].median};
}

Automatic::Automatic(const StepSetup& setup, GradientPipe& pipe, Ordered* ordered)
    : setup_(setup),
      pipe_(&pipe),
      ordered_(ordered),
      options_(*setup_.options.buckets),
      old_name_(format_bytes(setup_.options.cap.cap_bytes) + " caps") {
  Automatic::renewed(pipe);
}

// The parameters have changed: begins again with the warm-up.
void Automatic::renewed(GradientPipe& pipe) {
  pipe_ = &pipe;
  phase_ = setup_.group.is_alone() ? AutomaticPhase::kSettled : AutomaticPhase::kWarmUp;  // one rank sends nothing
  steps_ = 0;
  times_.clear();
  sampler_.reset();
  trial_.reset();
  last_end_.reset();
  watched_.clear();
  periods_.clear();
}

void Automatic::begin() {
  const bool is_profiling = phase_ == AutomaticPhase::kProfiling;
  pipe_->time_backward_on(is_profiling ? std::optional(clock()) : std::nullopt);
}

// A step counts if it and the step before have ended well and all ranks had data in it. All ranks know this alike.
void Automatic::ended(const StepAgreement& agreement, bool is_good) {
  if (phase_ == AutomaticPhase::kSettled) return;
  if (!is_good) return last_end_.reset();  // the next step is not timed: its time would begin here
  if (last_end_ && agreement.ranks_with_data() == setup_.group.size) {
    step_.before = *last_end_;
    step_.end = device_now(clock());
    step_ended();
  }
  last_end_ = device_now(clock());  // again: what was measured since is no part of the next step
}

void Automatic::log(const std::string& line) const {
  if (setup_.group.rank != 0) return;
  try {
    if (options_.log) return options_.log("firkin: " + line);
    fmt::print(stderr, "firkin: {}\n", line);
  } catch (...) {  // a line in the log is not worth the training
  }
}

void Automatic::step_ended() {
  ++steps_;
  switch (phase_) {
    case AutomaticPhase::kWarmUp:
      if (steps_ == kWarmUpSteps) phase_ = AutomaticPhase::kProfiling;
      return;
    case AutomaticPhase::kProfiling:
      return profile();
    case AutomaticPhase::kMeasuring:
      return measure();
    case AutomaticPhase::kTrying:
      return try_out();
    case AutomaticPhase::kSettled:
      return;
  }
}

void Automatic::use(const CommunicationPlan& plan) {
  if (plan == in_use()) return;
  if (ordered_ != nullptr) {
    ordered_->receive_rest();
    ordered_->forget_buckets();
  }
  pipe_->use_plan(plan);
}

void Automatic::profile() {
  step_.backward = pipe_->backward_times();
  if (ordered_ != nullptr) step_.forward = ordered_->last_forward();
  watched_.push_back(std::exchange(step_, {}));
  if (std::ssize(watched_) < options_.profile_steps) return;
  for (const WatchedStep& step : std::exchange(watched_, {})) times_.push_back(max_over_ranks(setup_.group, row_of(step)));
  const auto bytes = [](const NamedTensor& parameter) { return static_cast<int64_t>(parameter.tensor.nbytes()); };
  int64_t gradient_bytes = 0;
  for (const NamedTensor& parameter : setup_.parameters) gradient_bytes += bytes(parameter);
  // The largest parameter's dtype and device: most bytes travel in that form.
  const at::Tensor& largest = std::ranges::max_element(setup_.parameters, {}, bytes)->tensor;
  const at::ScalarType dtype = largest.scalar_type();
  const bool compresses = dtype == at::kFloat || dtype == at::kDouble;
  const at::ScalarType wire = compresses ? setup_.options.gradient_hook.wire_dtype.value_or(dtype) : dtype;
  const at::TensorOptions on_wire = at::TensorOptions(wire).device(largest.device());
  sampler_ = std::make_unique<AllReduceSampler>(setup_.group, gradient_bytes, largest.element_size(), on_wire, options_.budget_s);
  phase_ = AutomaticPhase::kMeasuring;
}

// Measures all-reduces while nothing else is in flight.
void Automatic::measure() {
  if (ordered_ != nullptr) ordered_->receive_rest();
  if (sampler_->measure_some()) plan();
}

void Automatic::plan() {
  std::string why_not;
  std::optional<CommunicationPlan> chosen;
  if (setup_.group.rank == 0) chosen = plan_on_rank_0(why_not);
  sampler_.reset();
  chosen = plan_of_rank_0(setup_.group, chosen);
  if (!chosen) return conclude(fmt::format("keeps {}, which make {}: {}; {}", old_name_, describe(in_use()), why_not, cost()));
  new_choice_.plan = std::move(*chosen);
  old_plan_ = in_use();
  trial_.emplace(options_.trial_pairs, options_.trial_steps);
  phase_ = AutomaticPhase::kTrying;
}

// None if nothing is worth a trial; `why_not` then says why.
std::optional<CommunicationPlan> Automatic::plan_on_rank_0(std::string& why_not) {
  const auto started = std::chrono::steady_clock::now();
  spent_s_ = sampler_->spent_s();
  std::optional<CommunicationPlan> chosen;
  try {
    const AllReduceTable table = sampler_->table();
    if (sampler_->is_cut_short()) {
      throw InputError(fmt::format("{} is too short to measure all-reduces of more than {}", format_seconds(options_.budget_s),
                                   format_bytes(table.back().bytes)));
    }
    const TrainingTimes times = median_times(times_);
    new_choice_ = choose_plan(setup_.parameters, setup_.options, times, table, setup_.group.size, in_use());
    if (new_choice_.step_s < new_choice_.in_use_s * (1 - kWorthATrial)) {
      chosen = new_choice_.plan;
    } else {
      why_not = fmt::format("{}, {}, would change a step of {} by only {}, it is predicted", new_choice_.name, describe(new_choice_.plan),
                            format_seconds(times.step_s), percent(new_choice_.step_s / new_choice_.in_use_s));
    }
  } catch (const std::exception& error) {
    why_not = error.what();
  }
  spent_s_ += seconds_since(started);
  return chosen;
}

void Automatic::try_out() {
  (trial_->uses_new() ? new_choice_.plan : old_plan_) = in_use();  // its launch order may have changed
  periods_.emplace_back(step_.before, step_.end);
  trial_->step_ended();
  if (trial_->is_over()) return conclude_trial();
  use(trial_->uses_new() ? new_choice_.plan : old_plan_);
}

void Automatic::conclude_trial() {
  std::vector<double> period_s;
  for (const auto& [before, end] : std::exchange(periods_, {})) period_s.push_back(std::max(seconds_between(before, end), kShortestPeriod));
  const PlanTrial::Verdict verdict = trial_->judge(max_over_ranks(setup_.group, period_s));
  const auto& [ratio, interval] = verdict.new_to_old;
  const bool new_stays = of_rank_0(setup_.group, keeps_tried(verdict.new_to_old) ? 1 : 0) != 0;
  const Faster faster = faster_of(verdict.new_to_old);
  const char* word = faster == Faster::kThis ? "faster" : faster == Faster::kOther ? "slower" : "not told apart";
  const std::string figures =
      fmt::format("a step takes {} with the new ones and {} with the old ones ({}, 95 % interval {} to {}: {}; predicted: {}); {}",
                  format_seconds(verdict.new_s), format_seconds(verdict.old_s), percent(ratio), percent(interval.low),
                  percent(interval.high), word, percent(new_choice_.step_s / new_choice_.in_use_s), cost());
  const std::string new_words = fmt::format("{}, {}", new_choice_.name, describe(new_choice_.plan));
  const std::string old_words = fmt::format("{}, which make {}", old_name_, describe(old_plan_));
  const CommunicationPlan& chosen = new_stays ? new_choice_.plan : old_plan_;
  conclude(new_stays ? fmt::format("takes {}, instead of {}: {}", new_words, old_words, figures)
                     : fmt::format("keeps {}, after trying {}: {}", old_words, new_words, figures));
  use(chosen);
}

void Automatic::conclude(const std::string& line) {
  phase_ = AutomaticPhase::kSettled;
  log(line);
  times_.clear();
}

std::string Automatic::cost() const {
  return fmt::format("it measured for {}, and in {} steps", format_seconds(spent_s_), steps_);
}

}  // namespace firkin
