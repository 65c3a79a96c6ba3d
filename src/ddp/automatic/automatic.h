// Automatic buckets: times steps while they run, measures all-reduces between them, and switches to better plans.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/device_time.h"
#include "ddp/ordered/ordered.h"
#include "firkin/plan/measurements.h"
#include "firkin/stats/estimates.h"
#include "measuring/allreduce_schedule.h"
#include "measuring/steps.h"

namespace firkin {

// Measures the performance model's curves a(x) and g(x) (modelled_link.h has them) by an AllReduceSchedule, a few
// visits at a time, between steps. Sums zeros in memory of its own. Not thread-safe.
class AllReduceSampler {
 public:
  // gradient_bytes: the largest size of interest. wire: for each element of element_bytes, an element of this dtype
  // travels, on this device.
  AllReduceSampler(ProcessGroup group, int64_t gradient_bytes, int64_t element_bytes, const at::TensorOptions& wire, double budget_s);

  // Measures for a quarter of a second, by which it delays a step; the last call, or the first queue of a size, may
  // take a little longer. Returns true if nothing is left to measure. Collective.
  bool measure_some();

  // By bytes of the gradients, not of what travels. Lacks sizes that take too long.
  AllReduceTable table() const { return allreduce_table(schedule_.series(), group_.size); }
  double spent_s() const { return schedule_.elapsed_s(); }
  // Whether the budget ran out before all sizes were measured; the larger ones are then missing.
  bool is_cut_short() const { return schedule_.is_cut_short(); }

 private:
  ProcessGroup group_;
  std::vector<TimedSize> sizes_;
  AllReduceSchedule schedule_;
  std::vector<std::vector<at::Tensor>> buffers_;  // by size
};

// Finds the faster of two plans by running them in turn, in blocks of training steps: old new, new old, old new, ...
// The first step of each visit to a plan does not count, because it may make buckets.
//
//   PlanTrial trial(8, 5);
//   while (!trial.is_over()) { a step with the plan that trial.uses_new() says; trial.step_ended(); }
//   trial.judge(slowest_period_s).new_to_old.interval;
class PlanTrial {
 public:
  PlanTrial(int64_t pairs, int64_t steps)
      : steps_{.warmup_steps = 1, .timed_steps = static_cast<int>(steps) - 1},
        schedule_({steps_, steps_}, {.fewest = static_cast<int>(pairs), .most = static_cast<int>(pairs)}) {}

  // Whether the next step is to use the new plan.
  bool uses_new() const { return schedule_.next()->setting == 1; }
  bool is_over() const { return !schedule_.next(); }
  void step_ended();

  struct Verdict {
    PairedRatio new_to_old;
    double old_s = 0;  // seconds of a step
    double new_s = 0;
  };
  // period_s: the slowest rank's seconds of every step of the trial, in their order.
  Verdict judge(std::span<const double> period_s) const;

 private:
  StepCounts steps_;  // of a visit to a plan
  StepSchedule schedule_;
  std::vector<size_t> visited_;  // 0: the old plan, 1: the new one
  int done_ = 0;                 // steps of this visit
};

// What the steps have shown, in seconds. Times in backward count from its first gradient, without the time that
// launches took.
struct TrainingTimes {
  std::vector<double> ready_s;  // per parameter: when it is in its bucket
  // Per parameter: when forward uses it, counted from the end of the step before; 0 unless the strategy is ordered.
  std::vector<double> needed_s;
  double backward_s = 0;  // when the last gradient is there
  // From the end of the step before to the first gradient, without waits; 0 unless the strategy is ordered.
  double forward_s = 0;
  double launch_s = 0;  // how long one launch keeps backward's thread
  double step_s = 0;    // a whole step, with the plan in use
};

struct PlanChoice {
  CommunicationPlan plan;
  std::string name;     // "3 MiB caps", "best plan"
  double step_s = 0;    // predicted
  double in_use_s = 0;  // predicted for the plan in use: as measured, where the model can explain that
};

// Chooses between every uniform cap, under the rule of options.cap, and the best plan of any sizes, which it considers
// only if all parameters share a dtype and a device, and takes only if it beats the best cap by a thousandth of a step.
// Under the strategy ordered, buckets are launched in the order in which forward needs them. The order of parameters is
// that of options.ready_order, or else of the ready times. The step without communication is times.step_s less what
// `in_use` is predicted to expose. Throws InputError if the model cannot use the measurements.
PlanChoice choose_plan(const std::vector<NamedTensor>& parameters, const DataParallelOptions& options, const TrainingTimes& times,
                       const AllReduceTable& table, int64_t world_size, const CommunicationPlan& in_use);

// "7 buckets (largest 2.4 MiB)"
std::string describe_buckets(const std::vector<NamedTensor>& parameters, const CommunicationPlan& plan);

// Rank 0's plan, on every rank; none if rank 0 has none. Collective.
std::optional<CommunicationPlan> plan_of_rank_0(const ProcessGroup& group, const std::optional<CommunicationPlan>& ours);

// What this rank has observed in one step. To read a device's times is to wait for the device, so they are read only
// after the last observed step.
struct WatchedStep {
  BackwardTimes backward = {};       // if the step was profiled
  ForwardTimes forward = {};         // of the forward before it, under the strategy ordered
  DeviceTime before = {}, end = {};  // the ends of the previous step and of this one
};

// Throws InputError unless buckets can be automatic: with the strategy bucketed or ordered, without a plan, all
// parameters on one device, and numbers in range.
void check_automatic(const DataParallelOptions& options, const std::vector<NamedTensor>& parameters);

// Runs the phases that options.h describes, on every rank after the same steps. What depends on a clock is decided by
// rank 0, or by times that the ranks have exchanged. If no plan can be chosen, the log says why, and the plan in use
// stays.
class Automatic final : public StepExtension {
 public:
  // setup, ordered: must outlive this; renewed() replaces the pipe. ordered: null under another strategy; the protocol
  // has to call it before this.
  Automatic(const StepSetup& setup, GradientPipe& pipe, Ordered* ordered);

  AutomaticPhase phase() const { return phase_; }

  void begin() override;
  void ended(const StepAgreement& agreement, bool is_good) override;
  void renewed(GradientPipe& pipe) override;

 private:
  c10::Device clock() const { return setup_.parameters[0].tensor.device(); }
  // A step that counts has ended. Collective.
  void step_ended();
  const CommunicationPlan& in_use() const { return pipe_->communication(); }
  // Uses the plan from the next step on.
  void use(const CommunicationPlan& plan);
  void profile();
  void measure();
  void plan();
  std::optional<CommunicationPlan> plan_on_rank_0(std::string& why_not);
  void try_out();
  void conclude_trial();
  void conclude(const std::string& line);
  void log(const std::string& line) const;
  std::string describe(const CommunicationPlan& plan) const { return describe_buckets(setup_.parameters, plan); }
  std::string cost() const;

  const StepSetup& setup_;
  GradientPipe* pipe_;
  Ordered* ordered_;
  AutomaticBuckets options_;
  std::string old_name_;  // "25 MiB caps"
  AutomaticPhase phase_ = AutomaticPhase::kWarmUp;
  int64_t steps_ = 0;                          // that counted
  std::vector<WatchedStep> watched_;           // those that were profiled
  std::vector<std::vector<double>> times_;     // the times of these, on the slowest rank
  std::unique_ptr<AllReduceSampler> sampler_;  // while measuring
  double spent_s_ = 0;                         // for all-reduces and planning
  CommunicationPlan old_plan_;                 // set, like what follows, once the trial has begun
  PlanChoice new_choice_;                      // rank 0's; the other ranks have only the plan
  std::optional<PlanTrial> trial_;
  std::vector<std::pair<DeviceTime, DeviceTime>> periods_;  // the beginning and end of each of the trial's steps

  WatchedStep step_;                    // the last one
  std::optional<DeviceTime> last_end_;  // the end of the previous step, if it ended well
};

}  // namespace firkin
