// Two plans in turn, in blocks of training steps, and which is the faster one.
//
//   PlanTrial trial(8, 5);
//   while (!trial.is_over()) trial.step_ended(seconds of a step with the plan that trial.uses_new() says);
//   trial.judge(slowest_period_s).new_to_old.interval;
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "firkin/stats/paired.h"

namespace firkin {

// Pairs of blocks: old new, new old, old new, ... so that what drifts meets both alike. The first step of a block, in which buckets may be
// made, does not count.
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

}  // namespace firkin
