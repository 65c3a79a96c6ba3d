// Automatic buckets: looks at the clock while steps run, and takes plans into use that it finds, between steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "allreduce_sampler.h"
#include "comm/device_time.h"
#include "ddp/ordered/ordered.h"
#include "firkin/stats/paired.h"
#include "measuring/step_schedule.h"
#include "plan_choice.h"

namespace firkin {

// Two plans in turn, in blocks of training steps, and which is the faster one: old new, new old, old new, ... The first step with a plan,
// in which buckets may be made, does not count.
//
//   PlanTrial trial(8, 5);
//   while (!trial.is_over()) { a step with the plan that trial.uses_new() says; trial.step_ended(); }
//   trial.judge(slowest_period_s).new_to_old.interval;
class PlanTrial {
 public:
  PlanTrial(int64_t pairs, int64_t steps)
      : all_({{1, static_cast<int>(steps) - 1}, {1, static_cast<int>(steps) - 1}},
             {.fewest = static_cast<int>(pairs), .most = static_cast<int>(pairs)}),
        rest_(all_) {}

  // In the step that comes.
  bool uses_new() const { return rest_.next()->setting == 1; }
  bool is_over() const { return !rest_.next(); }
  void step_ended();

  struct Verdict {
    PairedRatio new_to_old;
    double old_s = 0;  // a step
    double new_s = 0;
  };
  // period_s: seconds of all steps, in their order: the slowest rank's.
  Verdict judge(std::span<const double> period_s) const;

 private:
  StepSchedule all_, rest_;
  int steps_ = 0;  // of this visit of a plan
};

// What one step has shown, on this rank. On a device its times are known when that has come so far: nothing asks for them before the last
// observed step has ended.
struct WatchedStep {
  struct Ready {
    DeviceTime at;
    size_t launches = 0;  // that came before it
  };
  DeviceTime began;
  std::vector<std::optional<Ready>> ready = {};                   // per parameter: in its bucket; none: not before the end of backward
  std::vector<std::pair<DeviceTime, DeviceTime>> launching = {};  // of one or several buckets, from the gradient that made them full
  int64_t launches = 0;                                           // of buckets
  DeviceTime sent = {};                                           // backward is over
  Ordered::Forward forward = {};                                  // the one before, under the strategy ordered
  DeviceTime before = {}, end = {};                               // of the step before it, and its own

  // Times without what launching has taken until then, which is another plan's to take or not.
  TrainingTimes times() const;
};

// Throws InputError unless buckets = automatic() can be: with the strategy bucketed or ordered, no plan, all parameters on one device, and
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
  // Steps that are profiled: every gradient is timed.
  bool is_profiling() const { return phase_ == AutomaticPhase::kProfiling; }
  DeviceTime now() const { return device_now(setup_.parameters[0].tensor.device()); }
  std::optional<CommunicationPlan> kept_plan();
  // After a step that counts. Collective.
  void step_ended();
  const CommunicationPlan& in_use() const { return synchronizer_.transport().communication(); }
  // From the next step on.
  void use(const CommunicationPlan& plan);
  void profile();
  void measure();
  void plan();
  std::optional<CommunicationPlan> plan_on_rank_0(std::string& why_not);
  void try_out();
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
  std::vector<WatchedStep> watched_;           // those that were profiled
  std::vector<std::vector<double>> times_;     // of them: the slowest rank's
  std::unique_ptr<AllReduceSampler> sampler_;  // while measuring
  double spent_s_ = 0;                         // for all-reduces and planning
  CommunicationPlan old_;                      // from here on: once the trial has begun
  PlanChoice new_;                             // of rank 0; of the other ranks the plan alone
  std::optional<PlanTrial> trial_;
  std::vector<std::pair<DeviceTime, DeviceTime>> periods_;  // of its steps

  WatchedStep step_;                    // this one
  DeviceTime placed_at_;                // its last gradient
  std::optional<DeviceTime> last_end_;  // of the step before, if it ended well
};

}  // namespace firkin
