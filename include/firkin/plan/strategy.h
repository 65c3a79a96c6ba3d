// The strategies of data parallelism by name, and how they differ.
//
//   const Strategy& strategy = find_strategy("bucketed");
//   strategy.launch;  // Launch::kWhenReady
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "firkin/base/error.h"

namespace firkin {

// A strategy is data: which gradients travel together, when they are sent, and when the step waits for them. `flat` is
// one bucket sent after backward; `overlap` is one tensor per bucket, each sent as soon as it is ready.
enum class Grouping {
  kOneTensorPerBucket,
  kOneBucket,
  kCap,   // buckets up to a cap (plan/bucket_plan.h)
  kPlan,  // an explicit BucketPlan
};

enum class Launch {
  kNever,          // no communication: the compute-only baseline
  kAfterBackward,  // one blocking all-reduce after another
  kWhenReady,      // during backward, in plan order
  kByTorch,        // by c10d::Reducer: the peer in `firkin bench step`; DataParallel refuses it
};

enum class Wait {
  kAtStepEnd,
  kAtFirstUse,  // in the next forward, before the first module that uses the parameters (await_parameters.h)
};

struct Strategy {
  std::string_view name;
  Grouping grouping;
  Launch launch;
  std::string_view summary;
  Wait wait = Wait::kAtStepEnd;
  // Each rank sums only its part of every bucket, and a ShardedOptimizer steps it (sharded_optimizer.h).
  bool shards = false;
};

inline constexpr std::array kStrategies = {
    Strategy{"none", Grouping::kOneTensorPerBucket, Launch::kNever, "no communication: the baseline of exposed communication"},
    Strategy{"naive", Grouping::kOneTensorPerBucket, Launch::kAfterBackward, "one blocking all-reduce per tensor after backward"},
    Strategy{"flat", Grouping::kOneBucket, Launch::kAfterBackward, "one all-reduce of everything after backward"},
    Strategy{"overlap", Grouping::kOneTensorPerBucket, Launch::kWhenReady, "one all-reduce per tensor, during backward"},
    Strategy{"bucketed", Grouping::kCap, Launch::kWhenReady, "one all-reduce per bucket up to a cap, during backward"},
    Strategy{"planned", Grouping::kPlan, Launch::kWhenReady, "one all-reduce per bucket of an explicit plan, during backward"},
    Strategy{"ordered", Grouping::kCap, Launch::kWhenReady,
             "like bucketed or planned, but sends first what the next forward needs first, and waits there", Wait::kAtFirstUse},
    Strategy{"sharded", Grouping::kCap, Launch::kWhenReady,
             "each rank sums and steps its part of every bucket; parameters are gathered behind the next forward", Wait::kAtFirstUse, true},
    Strategy{"torch", Grouping::kCap, Launch::kByTorch, "c10d::Reducer, PyTorch's own engine, for comparison"},
};

// The strategy of this name. Throws InputError, which lists the names, for any other.
inline const Strategy& find_strategy(std::string_view name) {
  std::string names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == name) return strategy;
    names += (names.empty() ? "" : ", ") + std::string(strategy.name);
  }
  throw InputError("strategy " + std::string(name) + ": expected one of " + names);
}

}  // namespace firkin
