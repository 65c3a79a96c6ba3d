// Chooses the buckets that are predicted to be best, from what was observed in training (plan/plan_file.h keeps them
// for the next run).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddp/transport.h"
#include "firkin/plan/measurements.h"
#include "plan/plan_file.h"

namespace firkin {

// Seconds. Times of backward count from its first gradient, without what launching the buckets took.
struct TrainingTimes {
  std::vector<double> ready_s;  // per parameter: when it is in its bucket
  // Per parameter, under the strategy ordered: when forward uses it, from the end of the step before; otherwise 0.
  std::vector<double> needed_s;
  double backward_s = 0;  // when the last gradient is there
  // Under the strategy ordered: from the end of the step before to the first gradient, without waits.
  double forward_s = 0;
  double launch_s = 0;  // what one launch takes of backward's thread
  double step_s = 0;    // a whole step, with the plan in use
};

struct PlanChoice {
  CommunicationPlan plan;
  std::string name;     // "3 MiB caps", "best plan"
  double step_s = 0;    // predicted
  double in_use_s = 0;  // predicted for the plan in use: as measured, unless the model holds that impossible
};

// Compares every uniform cap under the rule of options.cap and, if all parameters are of one dtype and device, the best
// plan of all (find_best_plan; under the strategy ordered find_ordered_plan, and all with a launch order by need). The
// order is options.ready_order, or else that of the ready times. Prefers a cap to a plan that is better by less than a
// thousandth of a step. The step without communication is taken to be times.step_s, less what the model says that
// `in_use` exposes. Throws InputError when the measurements are no input for the model.
PlanChoice choose_plan(const std::vector<NamedTensor>& parameters, const DataParallelOptions& options, const TrainingTimes& times,
                       const AllReduceTable& table, int64_t world_size, const CommunicationPlan& in_use);

// "7 buckets (largest 2.4 MiB)"
std::string describe_buckets(const std::vector<NamedTensor>& parameters, const CommunicationPlan& plan);

// What a plan for this training is chosen for.
PlanKey plan_key(const StepSetup& setup);

// Rank 0's plan, on every rank; none if it has none. Collective.
std::optional<CommunicationPlan> plan_of_rank_0(const ProcessGroup& group, const std::optional<CommunicationPlan>& ours);

}  // namespace firkin
