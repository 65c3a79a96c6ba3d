// The settings of training steps that `firkin tune` measures.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "bench/ready_profile.h"
#include "bench/step_bench.h"
#include "bench/tune_result.h"
#include "firkin/plan/bucket_assignment.h"
#include "firkin/plan/bucket_plan.h"

namespace firkin {

inline constexpr std::string_view kTorchDefaultName = "torch default";
inline constexpr std::string_view kOrderedName = "ordered";

// All keep the profile's ready order, so that plans mean the same tensors everywhere.
StepSetting strategy_setting(const ReadyProfile& profile, std::string_view strategy);
StepSetting cap_setting(const ReadyProfile& profile, const CapOptions& rule, int64_t cap);
StepSetting plan_setting(const ReadyProfile& profile, const BucketPlan& plan);
// The strategy ordered with these buckets. It chooses the launch order itself, from steps: the plan's was made without them.
StepSetting ordered_setting(const ReadyProfile& profile, const BucketPlan& plan);
// A cap with gradients in another type on the wire.
StepSetting hook_setting(const ReadyProfile& profile, const CapOptions& rule, const HookPoint& hook);
// Gradients are views of the Reducer's buckets, which spares it a copy that PyTorch's default makes: what is gained over it comes from the
// buckets.
StepSetting torch_default_setting(const ReadyProfile& profile);

struct Settings {
  std::vector<StepSetting> settings;
  SettingNames names;
};

// none, with `compare` naive, flat and overlap too, PyTorch's default where `result` has it, ordered and the hooks that `result` has, and
// the caps.
Settings settings_to_measure(const TuneResult& result, const CapOptions& rule, const std::vector<int64_t>& caps, int64_t best_cap,
                             bool compare);

}  // namespace firkin
