#include "tune_settings.h"

#include <fmt/format.h>

#include "firkin/base/units.h"
#include "firkin/plan/compression.h"

namespace firkin {
namespace {

DataParallelOptions rewrap_options(const ReadyProfile& profile, std::string_view strategy) {
  DataParallelOptions options;
  options.strategy = find_strategy(strategy);
  options.broadcast_parameters = false;  // the ranks are in step already
  options.ready_order = profile.ready_order;
  return options;
}

}  // namespace

StepSetting strategy_setting(const ReadyProfile& profile, std::string_view strategy) {
  return {std::string(strategy), rewrap_options(profile, strategy)};
}

StepSetting cap_setting(const ReadyProfile& profile, const CapOptions& rule, int64_t cap) {
  DataParallelOptions options = rewrap_options(profile, "bucketed");
  options.cap = rule;
  options.cap.cap_bytes = cap;
  return {fmt::format("bucketed {}", format_bytes(cap)), options};
}

StepSetting plan_setting(const ReadyProfile& profile, const BucketPlan& plan) {
  DataParallelOptions options = rewrap_options(profile, "planned");
  options.plan = plan;
  return {fmt::format("planned, {} buckets", plan.buckets.size()), options};
}

StepSetting ordered_setting(const ReadyProfile& profile, const BucketPlan& plan) {
  DataParallelOptions options = rewrap_options(profile, kOrderedName);
  options.plan = plan;
  options.plan->launch_order.clear();
  return {std::string(kOrderedName), options};
}

StepSetting hook_setting(const ReadyProfile& profile, const CapOptions& rule, const HookPoint& hook) {
  StepSetting setting = cap_setting(profile, rule, hook.predicted.cap_bytes);
  if (hook.hook == kBf16Hook) setting.options.gradient_hook = bf16_compression();
  setting.name += fmt::format(", {}", hook.hook);
  return setting;
}

StepSetting torch_default_setting(const ReadyProfile& profile) {
  DataParallelOptions options = rewrap_options(profile, "torch");
  options.cap = kTorchDefaultCaps;
  return {std::string(kTorchDefaultName), options};
}

Settings settings_to_measure(const TuneResult& result, const CapOptions& rule, const std::vector<int64_t>& caps, int64_t best_cap,
                             bool compare) {
  Settings list;
  list.names.caps = caps;
  list.names.best_cap = best_cap;
  list.names.rule = rule;
  const auto add_strategy = [&](StepSetting setting, const std::string& name) {
    list.names.strategies.push_back(name);
    list.settings.push_back(std::move(setting));
    return list.settings.size() - 1;
  };
  add_strategy(strategy_setting(result.profile, "none"), "none");  // first: others are compared with it
  for (const char* name : {"naive", "flat", "overlap"}) {
    if (compare) add_strategy(strategy_setting(result.profile, name), name);
  }
  if (result.torch_default) list.names.torch_default = add_strategy(torch_default_setting(result.profile), std::string(kTorchDefaultName));
  if (result.ordered) {
    list.names.ordered = add_strategy(ordered_setting(result.profile, result.ordered->plan), std::string(kOrderedName));
  }
  for (const HookPoint& hook : result.hooks) {
    StepSetting setting = hook_setting(result.profile, rule, hook);
    const std::string name = setting.name;
    list.names.hooks.push_back(add_strategy(std::move(setting), name));
  }
  for (const int64_t cap : caps) list.settings.push_back(cap_setting(result.profile, rule, cap));
  return list;
}

}  // namespace firkin
