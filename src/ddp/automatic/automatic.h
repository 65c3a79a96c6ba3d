// Automatic buckets: looks at the clock while steps run, and takes plans into use that it finds, between steps.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "allreduce_sampler.h"
#include "ddp/ordered/ordered.h"
#include "firkin/stats/paired.h"
#include "plan_choice.h"

namespace firkin {

// Two plans in turn, in blocks of training steps, and which is the faster one: old new, new old, old new, ... so that what drifts meets
// both alike. The first step of a block, in which buckets may be made, does not count.
//
//   PlanTrial trial(8, 5);
//   while (!trial.is_over()) trial.step_ended(seconds of a step with the plan that trial.uses_new() says);
//   trial.judge(slowest_period_s).new_to_old.interval;
class PlanTrial {
 public:
  PlanTrial(int64_t pairs, int64_t steps_of_block) : blocks_(2 * pairs), steps_of_block_(steps_of_block) {}

  // In the step that comes.
  bool uses_new() const { return uses_new(steps() / steps_of_block_); }
  bool is_over() const { return steps() == blocks_ * steps_of_block_; }
  void step_ended(double period_s) { period_s_.push_back(period_s); }

  int64_t steps() const { return static_cast<int64_t>(period_s_.size()); }
  const std::vector<double>& period_s() const { return period_s_; }

  struct Verdict {
    PairedRatio new_to_old;
    double old_s = 0;  // a step
    double new_s = 0;
  };
  // period_s: of all steps, in their order, as period_s() but the slowest rank's.
  Verdict judge(std::span<const double> period_s) const;

 private:
  static bool uses_new(int64_t block) { return (block % 2 == 1) != (block / 2 % 2 == 1); }

  int64_t blocks_;
  int64_t steps_of_block_;
  std::vector<double> period_s_;
};

// Throws InputError unless buckets = automatic() can be: with the strategy bucketed or ordered, no plan, parameters on the CPU, and
// sensible numbers.
void check_automatic(const DataParallelOptions& options, const std::vector<NamedTensor>& parameters);

// The course that options.h describes. All ranks call it after the same steps, so what it sends meets. Whatever follows from a clock is
// decided on rank 0, or from times that were exchanged. What goes wrong in planning, and with the file, ends in a line of the log and the
// plan in use.
class Automatic final : public StepExtension {
 public:
  // Both must outlive this; ordered: null under another strategy, and told of steps before this. Takes up what the plan file says.
  // Collective.
  Automatic(Synchronizer& synchronizer, Ordered* ordered);

  AutomaticPhase phase() const { return phase_; }

  void begun() override;
  void placed(size_t parameter) override;
  void launched(size_t buckets) override;
  void sending() override;
  void ended(const StepAgreement& agreement) override;
  void dropped() override { last_end_.reset(); }  // the time to the next end is no step's
  void renewed() override;

 private:
  using Clock = std::chrono::steady_clock;

  TrainingTimes times_of_step(double period_s) const;
  std::optional<CommunicationPlan> kept_plan();
  // After a step that counts, which took times.step_s from the end of the step before it. Collective.
  void step_ended(const TrainingTimes& times);
  const CommunicationPlan& in_use() const { return synchronizer_.transport().communication(); }
  // From the next step on.
  void use(const CommunicationPlan& plan);
  void profile(const TrainingTimes& times);
  void measure();
  void plan();
  std::optional<CommunicationPlan> plan_on_rank_0(std::string& why_not);
  void try_out(double period_s);
  void settle_trial();
  void settle(const CommunicationPlan& chosen, const std::string& line);
  void log(const std::string& line) const;
  std::string describe(const CommunicationPlan& plan) const { return describe_buckets(setup_.parameters, plan); }
  std::string cost() const;

  Synchronizer& synchronizer_;
  Ordered* ordered_;
  const StepSetup& setup_;
  AutomaticBuckets options_;
  std::string old_name_;  // "25 MiB caps"
  AutomaticPhase phase_ = AutomaticPhase::kWarmUp;
  int64_t steps_ = 0;                          // that counted
  std::vector<std::vector<double>> times_;     // of the profiled steps: the slowest rank's
  std::unique_ptr<AllReduceSampler> sampler_;  // while measuring
  double spent_s_ = 0;                         // for all-reduces and planning
  CommunicationPlan old_;                      // from here on: once the trial has begun
  PlanChoice new_;                             // of rank 0; of the other ranks the plan alone
  std::optional<PlanTrial> trial_;

  // Of this step. Times without what launching has taken until then, which is the other plan's to take or not.
  Clock::time_point began_;
  Clock::time_point placed_at_;  // the last gradient
  Clock::duration launching_{};
  int64_t launches_ = 0;
  std::vector<std::optional<double>> ready_s_;  // per parameter
  double sent_s_ = 0;                           // backward is over
  std::optional<Clock::time_point> last_end_;   // of the step before, if it ended well
};

}  // namespace firkin
