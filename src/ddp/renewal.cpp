// How a wrapped module switches to other parameters: between steps, or in a step that meets the change.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/across_ranks.h"
#include "first_use.h"
#include "sharded/sharded.h"
#include "synchronizer.h"

namespace firkin {
namespace {

// What all ranks train after some of them have seen a change.
struct ParameterRenewal {
  std::vector<NamedTensor> parameters;   // those that this rank trains now
  std::string sets_differ = {};          // the first difference in what ranks train, or in their buffers; if empty:
  std::vector<NamedTensor> joined = {};  // the parameters that some rank did not train before
  // The first of these that joined on some ranks only, or with other values on some rank than on rank 0; empty if there
  // is none.
  std::string values_differ = {};
};

constexpr const char* kValuesDiffered =
    "{} was added or replaced after wrapping, with values that differed between ranks; all ranks now have rank 0's, and the next step "
    "includes it; expected parameters_changed() on every rank after such a change";
// A Python module is a mirror.
constexpr const char* kChangedUnderShardedInPython =
    "the trained parameters have changed, and in Python the strategy sharded does not divide states again; expected a new "
    "DistributedDataParallel and ShardedOptimizer after such a change";
constexpr const char* kChangedUnderSharded =
    "the trained parameters have changed, and the strategy sharded includes the change only from the next step on; expected "
    "parameters_changed() on every rank after such a change";

// Finds out what all ranks train now; the same on every rank, except for the tensors themselves. before: what this rank
// trained. Collective, over the control group.
ParameterRenewal renew_parameters(const ProcessGroup& control, const torch::nn::Module& module, const std::vector<NamedTensor>& before) {
  ParameterRenewal renewal{.parameters = trainable_parameters(module)};
  const auto is_new = [&](const NamedTensor& parameter) {
    return std::ranges::none_of(before, [&](const NamedTensor& old) { return old.tensor.is_same(parameter.tensor); });
  };
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : renewal.parameters) lines.push_back(describe_tensor("trainable parameter", name, tensor));
  for (const auto& [name, buffer] : buffers_in(module)) lines.push_back(describe_tensor("buffer", name, buffer));
  renewal.sets_differ = difference_between_ranks(control, lines);
  if (!renewal.sets_differ.empty()) return renewal;
  std::vector<double> flags;  // for each whether it is new here, then for each whether it is known here
  for (const NamedTensor& parameter : renewal.parameters) flags.push_back(is_new(parameter) ? 1 : 0);
  for (size_t i = 0; i < renewal.parameters.size(); ++i) flags.push_back(1 - flags[i]);
  const std::vector<double> on_any = max_over_ranks(control, flags);
  std::vector<bool> is_known_somewhere;
  for (size_t i = 0; i < renewal.parameters.size(); ++i) {
    if (on_any[i] == 0) continue;
    renewal.joined.push_back(renewal.parameters[i]);
    is_known_somewhere.push_back(on_any[renewal.parameters.size() + i] != 0);
  }
  if (renewal.joined.empty()) return renewal;
  const std::vector<std::optional<int>> differing = differing_ranks(control, renewal.joined);
  for (size_t i = 0; i < differing.size() && renewal.values_differ.empty(); ++i) {
    if (differing[i] || is_known_somewhere[i]) renewal.values_differ = renewal.joined[i].name;
  }
  return renewal;
}

// Why the next step cannot use these parameters; empty if it can. The same on every rank.
std::string why_not_renewed(const StepSetup& setup, const ParameterRenewal& renewal) {
  if (!renewal.sets_differ.empty()) return renewal.sets_differ;
  if (renewal.parameters.empty()) return "the module has no trainable parameter left";
  if (setup.options.strategy.wait == Wait::kAtFirstUse) {
    if (std::string reason = why_not_awaited(renewal.parameters); !reason.empty()) return reason;
  }
  if (setup.options.strategy.shards) {
    if (dynamic_cast<const MirrorModule*>(setup.module) != nullptr) return kChangedUnderShardedInPython;
    if (std::string reason = why_not_sharded(*setup.module); !reason.empty()) return reason;
  }
  const bool is_planned = takes_plan(setup.options) || !setup.options.ready_order.empty();
  if (is_planned && renewal.parameters.size() != setup.parameters.size()) {
    return fmt::format("the module now trains {} parameters, but its plan or ready order covers {}", renewal.parameters.size(),
                       setup.parameters.size());
  }
  if (!is_planned) return "";
  try {
    plan_communication(renewal.parameters, setup.initial_order, setup.options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Averages gradients that have no bucket yet, one after another.
void reduce_joined(const StepSetup& setup, const StepAgreement& agreement, const ParameterRenewal& renewal) {
  const at::NoGradGuard no_grad;
  const bool has_data = agreement.has_data(setup.group.rank);
  for (const auto& [name, parameter] : renewal.joined) {
    at::Tensor& gradient = parameter.mutable_grad();
    const bool has_gradient = gradient.defined() && has_data;
    const auto users = all_gather(setup.control, {has_gradient ? 1.0 : 0.0});
    if (std::ranges::none_of(users, [](const auto& user) { return user[0] != 0; })) continue;
    at::Tensor sum = has_gradient ? gradient.contiguous() : at::zeros_like(parameter, at::MemoryFormat::Contiguous);
    sum.mul_(1.0 / agreement.ranks_with_data());
    all_reduce(setup.group, sum);
    gradient = sum;
  }
}

// Gives all ranks rank 0's values of the parameters that joined, unless they have them.
void equalize_joined(const ProcessGroup& group, const ParameterRenewal& renewal) {
  if (!renewal.values_differ.empty()) broadcast_tensors(group, tensors_of(renewal.joined), 0);
}

}  // namespace

// Ends the step with the parameters that the module trains now.
void Synchronizer::renew() {
  const ParameterRenewal renewal = renew_parameters(setup_.control, *setup_.module, setup_.parameters);
  std::string objection = why_not_renewed(setup_, renewal);
  if (objection.empty() && (!renewal.values_differ.empty() || setup_.options.strategy.shards)) {
    objection = renewal.values_differ.empty() ? kChangedUnderSharded : fmt::format(kValuesDiffered, renewal.values_differ);
    equalize_joined(setup_.group, renewal);
    fail({.rank = 0, .step = step_, .reason = objection}, nullptr);
    return train(renewal.parameters);
  }
  if (!objection.empty()) return fail({.rank = 0, .step = step_, .reason = objection}, nullptr);
  failures_.clear();
  receive_means(/*all=*/true);
  reduce_joined(setup_, *agreement_, renewal);
  receive_buffers();
  train(renewal.parameters);
  ++steps_finished_;
}

// Switches to other parameters, with new hooks and buckets. The gradients keep the old buckets' memory until they are
// gone.
void Synchronizer::train(std::vector<NamedTensor> parameters) {
  const std::vector<NamedTensor> before = std::exchange(setup_.parameters, std::move(parameters));
  transport_->release();
  if (setup_.options.ready_order.empty()) setup_.initial_order = reversed_order(setup_.parameters.size());
  try {
    prepare_steps();
  } catch (...) {  // the group is lost; what is left must be consistent
    setup_.parameters = before;
    throw;
  }
  for (StepExtension* extension : extensions_) extension->renewed(*transport_);
  hooks_.reset();
  install_hooks();
}

// Follows changes of the module's parameters between steps. Returns why_not_renewed().
std::string Synchronizer::apply_changes() {
  const ParameterRenewal renewal = renew_parameters(setup_.control, *setup_.module, setup_.parameters);
  std::string objection = why_not_renewed(setup_, renewal);
  if (!objection.empty()) return objection;
  equalize_joined(setup_.group, renewal);
  train(renewal.parameters);
  return "";
}

void Synchronizer::parameters_changed() {
  const auto held = enter();
  if (open_) throw RuntimeError("parameters_changed() called within a step; expected between steps");
  if (auto* const mirror = dynamic_cast<MirrorModule*>(setup_.module)) mirror->look();
  const Call call(*this, "parameters_changed()");
  const std::string objection = or_lose_group([&] { return apply_changes(); });
  if (!objection.empty()) throw RuntimeError("DataParallel: " + objection);
}

}  // namespace firkin
