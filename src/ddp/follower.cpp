#include "follower.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agreement.h"
#include "audit.h"
#include "awaiting_modules.h"
#include "comm/across_ranks.h"
#include "firkin/base/error.h"
#include "ready_order.h"
#include "sharded/sharded.h"

namespace firkin {
namespace {

constexpr const char* kValuesDiffered =
    "{} was added or replaced after wrapping, with values that differed between ranks; all ranks now have rank 0's, and the next step "
    "includes it; expected parameters_changed() on every rank after such a change";
// For a MirrorModule: the program is in Python.
constexpr const char* kChangedUnderShardedInPython =
    "the trained parameters have changed, and in Python the strategy sharded does not divide states again; expected a new "
    "DistributedDataParallel and ShardedOptimizer after such a change";
constexpr const char* kChangedUnderSharded =
    "the trained parameters have changed, and the strategy sharded includes the change only from the next step on; expected "
    "parameters_changed() on every rank after such a change";

// Why the next step cannot use these parameters; empty if it can. The same on every rank.
std::string why_not_followed(const StepSetup& setup, const std::vector<NamedTensor>& parameters) {
  if (parameters.empty()) return "the module has no trainable parameter left";
  if (setup.options.strategy.wait == Wait::kAtFirstUse) {
    if (std::string reason = why_not_awaited(parameters); !reason.empty()) return reason;
  }
  if (setup.options.strategy.shards) {
    if (dynamic_cast<const MirrorModule*>(setup.module) != nullptr) return kChangedUnderShardedInPython;
    if (std::string reason = why_not_sharded(*setup.module); !reason.empty()) return reason;
  }
  const bool is_planned = takes_plan(setup.options) || !setup.options.ready_order.empty();
  if (is_planned && parameters.size() != setup.parameters.size()) {
    return fmt::format("the module now trains {} parameters, but its plan or ready order covers {}", parameters.size(),
                       setup.parameters.size());
  }
  if (!is_planned) return "";
  try {
    plan_communication(parameters, setup.initial_order, setup.options);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

// Why the step that meets the change cannot end well; empty if it can.
std::string why_not_in_step(const StepSetup& setup, const ModuleChange& change) {
  if (!change.values_differ.empty()) return fmt::format(kValuesDiffered, change.values_differ);
  return setup.options.strategy.shards ? kChangedUnderSharded : "";
}

// Sets joined and values_differ. Collective.
void find_joined(const StepSetup& setup, ModuleChange& change) {
  const auto is_new = [&](const NamedTensor& parameter) {
    return std::ranges::none_of(setup.parameters, [&](const NamedTensor& old) { return old.tensor.is_same(parameter.tensor); });
  };
  const size_t count = change.parameters.size();
  std::vector<double> flags;  // per parameter whether it is new on this rank, then per parameter whether it is not
  for (const NamedTensor& parameter : change.parameters) flags.push_back(is_new(parameter) ? 1 : 0);
  for (size_t i = 0; i < count; ++i) flags.push_back(1 - flags[i]);
  const std::vector<double> on_any = max_over_ranks(setup.control, flags);
  std::vector<bool> is_known_somewhere;
  for (size_t i = 0; i < count; ++i) {
    if (on_any[i] == 0) continue;
    change.joined.push_back(change.parameters[i]);
    is_known_somewhere.push_back(on_any[count + i] != 0);
  }
  if (change.joined.empty()) return;
  const std::vector<std::optional<int>> differing = differing_ranks(setup.control, change.joined);
  for (size_t i = 0; i < differing.size() && change.values_differ.empty(); ++i) {
    if (differing[i] || is_known_somewhere[i]) change.values_differ = change.joined[i].name;
  }
}

}  // namespace

std::string why_gradient_is_gone(const NamedTensor& parameter) {
  if (!parameter.tensor.requires_grad()) {
    return fmt::format("{} was frozen between forward and backward; expected requires_grad to change before forward", parameter.name);
  }
  return fmt::format(
      "a hook removed the gradient of {} before it was averaged; expected hooks that leave it in place, and steps of the optimiser after "
      "backward()",
      parameter.name);
}

ModuleFollower::ModuleFollower(StepSetup& setup, Callbacks callbacks)
    : setup_(setup), callbacks_(std::move(callbacks)), parameters_(*setup.module, setup.options.strategy.wait == Wait::kAtFirstUse) {
  record_module();
}

void ModuleFollower::record_module() {
  parameters_.record();
  if (setup_.options.broadcast_buffers) buffers_.emplace(*setup_.module, setup_.control, setup_.group);
}

void ModuleFollower::add_hooks() {
  hooks_.reset();
  hooks_ = std::make_unique<ParameterHooks>(setup_.parameters, callbacks_.on_gradient);
  add_hooks_to_others(parameters_in(*setup_.module));
}

void ModuleFollower::add_hooks_to_others(const std::vector<NamedTensor>& all) {
  other_hooks_.reset();
  other_hooks_.emplace(all, setup_.parameters, callbacks_.on_other_gradient);
}

void ModuleFollower::remove_hooks() {
  hooks_.reset();
  other_hooks_.reset();
}

void ModuleFollower::read_module() {
  if (auto* const mirror = dynamic_cast<MirrorModule*>(setup_.module)) mirror->read();
}

bool ModuleFollower::holds_any_parameter() const {
  const std::vector<NamedTensor> held = parameters_in(*setup_.module);
  return std::ranges::any_of(setup_.parameters, [&](const NamedTensor& parameter) {
    return std::ranges::any_of(held, [&](const NamedTensor& each) { return each.tensor.is_same(parameter.tensor); });
  });
}

void ModuleFollower::forget_gradients() {
  for (const NamedTensor& parameter : setup_.parameters) parameter.tensor.mutable_grad().reset();
  if (!has_other_parameters()) return;
  for (const NamedTensor& parameter : trainable_parameters(*setup_.module)) parameter.tensor.mutable_grad().reset();
}

ModuleChange ModuleFollower::find_change() const {
  ModuleChange change{.parameters = trainable_parameters(*setup_.module)};
  std::vector<std::string> lines;
  for (const auto& [name, tensor] : change.parameters) lines.push_back(describe_tensor("trainable parameter", name, tensor));
  for (const auto& [name, buffer] : buffers_in(*setup_.module)) lines.push_back(describe_tensor("buffer", name, buffer));
  change.refusal = difference_between_ranks(setup_.control, lines);
  if (!change.refusal.empty()) return change;
  find_joined(setup_, change);
  change.refusal = why_not_followed(setup_, change.parameters);
  change.delay = why_not_in_step(setup_, change);
  return change;
}

void ModuleFollower::equalize(const ModuleChange& change) const {
  if (!change.values_differ.empty()) broadcast_tensors(setup_.group, tensors_of(change.joined), 0);
}

void ModuleFollower::average_joined(const ModuleChange& change, bool has_data, int ranks_with_data) const {
  const at::NoGradGuard no_grad;
  for (const auto& [name, parameter] : change.joined) {
    at::Tensor& gradient = parameter.mutable_grad();
    const bool has_gradient = gradient.defined() && has_data;
    const auto users = all_gather(setup_.control, {has_gradient ? 1.0 : 0.0});
    if (std::ranges::none_of(users, [](const auto& user) { return user[0] != 0; })) continue;
    at::Tensor sum = has_gradient ? gradient.contiguous() : at::zeros_like(parameter, at::MemoryFormat::Contiguous);
    sum.mul_(1.0 / ranks_with_data);
    all_reduce(setup_.group, sum);
    gradient = sum;
  }
}

void ModuleFollower::follow(std::vector<NamedTensor> parameters) {
  setup_.parameters = std::move(parameters);
  if (setup_.options.ready_order.empty()) setup_.initial_order = reversed_order(setup_.parameters.size());
  record_module();
}

void ModuleFollower::send_buffers() {
  if (buffers_) buffers_->launch(0);
}

void ModuleFollower::receive_buffers(int root, bool any_changed) {
  if (!buffers_) return;
  const bool is_as_sent = root == 0 && !any_changed;
  buffers_->wait(/*keep=*/is_as_sent);
  if (is_as_sent) return;
  if (buffers_->read()) buffers_->adopt();
  buffers_->launch(root);
  buffers_->wait(/*keep=*/true);
}

void ModuleFollower::drop_buffers() {
  if (buffers_) buffers_->wait(/*keep=*/false);
}

std::string ModuleFollower::difference_of_buffers() const {
  return buffers_ ? difference_between_ranks(setup_.control, buffers_->lines()) : "";
}

std::vector<NamedTensor> ModuleFollower::untouched_buffers() const {
  return buffers_ ? buffers_->untouched() : std::vector<NamedTensor>{};
}

}  // namespace firkin
