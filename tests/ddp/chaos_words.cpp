// The plan in words.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <string_view>

#include "chaos_plan.h"

namespace firkin {
namespace {

std::string describe(const ChaosChange& change) {
  constexpr std::array kKinds = {"thaws", "freezes", "adds", "replaces"};
  std::string text =
      fmt::format("first {} {} on rank {}", kKinds[static_cast<size_t>(change.kind)], change.name, fmt::join(change.ranks, ", "));
  if (change.brings_values()) text += change.same_values ? ", the same values" : ", values of each rank's own";
  return text + (change.tells ? ", and tells" : "");
}

std::string describe(const ChaosAction& action) {
  std::string text = action.without_backward ? "no backward" : fmt::format("{} micro-batches", action.micro_batches);
  if (action.by_setter) text += " by setter";
  if (!action.pass.uses_extra) text += " without extra";
  if (!action.pass.checkpoints) text += " without checkpoint";
  if (action.finishes_twice) text += " finishes twice";
  constexpr std::array kFaults = {"", "forward throws", "backward throws", "throws after backward", "abandons", "creates a graph"};
  if (action.fault != ChaosFault::kNone)
    text += fmt::format(" {} in micro-batch {}", kFaults[static_cast<size_t>(action.fault)], action.fault_micro);
  if (action.fault == ChaosFault::kBackward) text += fmt::format(" at {}", action.pass.throw_at);
  return text + fmt::format(", abandons {}", action.abandons);
}

}  // namespace

std::string describe(const ChaosPlan& plan) {
  const ChaosModelSpec& model = plan.model;
  std::string text = fmt::format("{} ranks, {} layers of {}", plan.ranks, model.depth, model.width);
  const auto add = [&text](bool has, std::string_view what) {
    if (has) text += fmt::format(", {}", what);
  };
  add(model.norm, "norm");
  add(model.tied, "tied");
  add(model.frozen, "frozen");
  add(model.extra, "extra");
  add(model.mixed_dtypes, "double");
  add(model.bank, "bank");
  add(model.computed, "computed weight");
  add(model.teacher, "teacher");
  add(model.checkpointing == Checkpointing::kAlways, "checkpoint");
  add(model.checkpointing == Checkpointing::kSometimes, "checkpoint sometimes");
  add(model.checkpointing != Checkpointing::kNone && model.shares_checkpointed, "shared with it");
  text += fmt::format("; {}, cap {} B", plan.strategy, plan.cap.cap_bytes);
  if (plan.cap.first_cap_bytes) text += fmt::format(", first {} B", *plan.cap.first_cap_bytes);
  add(plan.cap.rule == CapRule::kAtMost, "at most");
  add(plan.explicit_ready_order, "ready order given");
  add(plan.find_unused_parameters, "find_unused_parameters");
  add(!plan.broadcast_buffers, "no broadcast_buffers");
  add(!plan.finish_with_backward, "finish by hand");
  add(plan.whole_parameters, "whole parameters");
  add(plan.abandons_in_handlers, "abandons in handlers");
  add(plan.compresses, "bf16");
  add(plan.adam, "AdamW");
  add(plan.modules == 2, "two modules");
  if (plan.audit_every > 0) text += fmt::format(", audit every {}", plan.audit_every);
  if (plan.clip_norm) text += fmt::format(", clip {}", *plan.clip_norm);
  add(plan.clips_by_hand, "clip by hand");
  add(plan.keeps_average, "average");
  add(plan.keeps_gradients, "keeps gradients");
  if (plan.straying_rank) text += fmt::format("; in the end rank {} goes astray", *plan.straying_rank);
  return text;
}

std::string describe(const ChaosStep& step) {
  constexpr std::array kZero = {"none", "in place", "never"};
  std::vector<std::string> ranks;
  for (size_t rank = 0; rank < step.actions.size(); ++rank) {
    ranks.push_back(fmt::format("rank {}: {}", rank, step.actions[rank] ? describe(*step.actions[rank]) : "has no batch"));
  }
  std::string change = step.change ? describe(*step.change) + "; " : "";
  if (step.sets_bank) change += "sets the bank; ";
  if (step.halves_weight) change += "halves a weight; ";
  return fmt::format("step {} of module {} ({}zero_grad {}; {})", step.number, step.module, change,
                     kZero[static_cast<size_t>(step.zero_grad)], fmt::join(ranks, "; "));
}

}  // namespace firkin
