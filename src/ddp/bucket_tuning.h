// The course of automatic buckets: what is done after each step, and with which plan the next one runs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allreduce_sampler.h"
#include "communication_plan.h"
#include "firkin/ddp/automatic_buckets.h"
#include "plan_choice.h"
#include "plan_trial.h"
#include "step_synchronizer.h"

namespace firkin {

// Throws InputError unless buckets = automatic() can be: with the strategy bucketed, no plan, parameters on the CPU, and sensible numbers.
void check_automatic(const DataParallelOptions& options, const std::vector<NamedTensor>& parameters);

// All ranks call it after the same steps, so what it sends meets. Whatever follows from a clock is decided on rank 0, or from times that
// were exchanged. What goes wrong in planning, and with the file, ends in a line of the log and the plan in use.
class BucketTuning {
 public:
  // setup: must outlive this.
  explicit BucketTuning(const SynchronizerSetup& setup);

  // Both collective, and both return the plan to use from the next step on; nothing: go on with the one in use.
  std::optional<CommunicationPlan> begin();
  // After a step that counts (automatic_buckets.h), which took times.step_s from the end of the step before it.
  std::optional<CommunicationPlan> step_ended(TrainingTimes times, const CommunicationPlan& in_use);

  AutomaticPhase phase() const { return phase_; }

 private:
  void profile(const TrainingTimes& times);
  void measure(const CommunicationPlan& in_use);
  std::optional<PlanChoice> plan_on_rank_0(const CommunicationPlan& in_use, std::string& why_not);
  std::optional<CommunicationPlan> try_out(double period_s, const CommunicationPlan& in_use);
  std::optional<CommunicationPlan> settle_trial(const CommunicationPlan& in_use);
  void settle(const CommunicationPlan& chosen, const std::string& line);
  void log(const std::string& line) const;
  std::string describe(const CommunicationPlan& plan) const { return describe_buckets(setup_.parameters, plan); }
  std::string cost() const;

  const SynchronizerSetup& setup_;
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
};

}  // namespace firkin
