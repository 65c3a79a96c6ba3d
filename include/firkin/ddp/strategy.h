// The ways to synchronise gradients: what travels together, when it is sent, and when it is waited for.
//
// A strategy is data: a grouping, a time of launch, a time of waiting. `flat` is one bucket sent after backward; `overlap` is one tensor a
// bucket, each sent as soon as it is ready.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace firkin {

enum class Grouping {
  kOneTensorPerBucket,
  kOneBucket,
  kCap,   // buckets up to a cap (bucket_assignment.h)
  kPlan,  // an explicit BucketPlan
};

enum class Launch {
  kNever,          // no communication: the compute-only baseline
  kAfterBackward,  // one blocking all-reduce after another
  kWhenReady,      // during backward, in plan order
  kByTorch,        // as c10d::Reducer sees fit
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
};

inline constexpr std::array kStrategies = {
    Strategy{"none", Grouping::kOneTensorPerBucket, Launch::kNever, "no communication: the baseline of exposed communication"},
    Strategy{"naive", Grouping::kOneTensorPerBucket, Launch::kAfterBackward, "one blocking all-reduce per tensor after backward"},
    Strategy{"flat", Grouping::kOneBucket, Launch::kAfterBackward, "one all-reduce of everything after backward"},
    Strategy{"overlap", Grouping::kOneTensorPerBucket, Launch::kWhenReady, "one all-reduce per tensor, during backward"},
    Strategy{"bucketed", Grouping::kCap, Launch::kWhenReady, "one all-reduce per bucket up to a cap, during backward"},
    Strategy{"planned", Grouping::kPlan, Launch::kWhenReady, "one all-reduce per bucket of an explicit plan, during backward"},
    Strategy{"ordered", Grouping::kCap, Launch::kWhenReady,
             "as bucketed or planned, what the next forward needs first goes first and is waited for there", Wait::kAtFirstUse},
    Strategy{"torch", Grouping::kCap, Launch::kByTorch, "c10d::Reducer, PyTorch's own: the peer that the others are compared with"},
};

// Throws InputError that lists the names.
const Strategy& find_strategy(std::string_view name);

// Why the strategy cannot be used with the LibTorch that this was built with; empty when it can.
std::string why_unavailable(const Strategy& strategy);

}  // namespace firkin
