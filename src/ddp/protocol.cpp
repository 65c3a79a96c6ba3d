#include "protocol.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"
#include "firkin/comm/device.h"

namespace firkin {
namespace {

constexpr const char* kAllReplaced =
    "DataParallel: every trained parameter of the module was replaced, and the optimiser has stepped by this rank's own gradients; "
    "expected parameters_changed() on every rank after such a change";

}  // namespace

StepProtocol::StepProtocol(StepSetup setup)
    : setup_(std::move(setup)),
      places_(setup_),
      follower_(setup_, {.on_gradient = [this](size_t parameter) { translated([&] { on_gradient(parameter); }); },
                         .on_other_gradient = [this] { translated([this] { on_other_gradient(); }); }}),
      audit_(setup_),
      watch_([this] { translated([this] { on_backward_ended(); }); }, [this](const std::string& reason) { on_backward_failed(reason); }) {
  prepare_steps({});
  if (audit_.is_due(step_)) audit_.take_checksum_after_optimizer();  // no optimiser has stepped before the first step
}

StepProtocol::~StepProtocol() {
  remove_hooks();
  if (is_lost()) return;
  if (const std::string suspicion = audit_.suspicion("may now differ"); !suspicion.empty()) {
    TORCH_WARN("DataParallel: ", suspicion);
  }
}

void StepProtocol::add_hooks(std::vector<StepExtension*> extensions) {
  extensions_ = std::move(extensions);
  follower_.add_hooks();
}

void StepProtocol::add_hooks_to_others(const std::vector<NamedTensor>& all) {
  const std::lock_guard held(mutex_);
  follower_.add_hooks_to_others(all);
}

void StepProtocol::remove_hooks() {
  watch_.close();
  follower_.remove_hooks();
}

std::unique_lock<std::recursive_mutex> StepProtocol::lock() const {
  watch_.settle();  // see Note [Threads of a failed backward] in backward_watch.h
  return std::unique_lock(mutex_);
}

std::unique_lock<std::recursive_mutex> StepProtocol::enter() const {
  std::unique_lock held = lock();
  throw_if_lost();
  return held;
}

const std::optional<StepFailure>& StepProtocol::last_failure() const {
  watch_.settle();
  return failures_.failure();
}

bool StepProtocol::set_gradient_synchronization(bool on) {
  const auto held = lock();
  return std::exchange(synchronizes_, on);
}

std::string StepProtocol::where() const {
  const std::string what = pipe_->first_pending();
  const std::string before = step_ == 0 ? "it has finished no step" : fmt::format("it last finished step {}", step_ - 1);
  return fmt::format("{} of step {}; {}", what.empty() ? "the end" : what, step_, before);
}

void StepProtocol::begin_step() {
  throw_if_lost();
  if (is_capturing(setup_.parameters[0].tensor.device())) {  // a replay of the graph would not let the ranks agree
    throw RuntimeError("DataParallel: backward during a graph capture; expected forward, backward and step outside a capture");
  }
  open_ = OpenStep();
  places_.begin_step(step_);
  or_lose_group([&] {  // a rank that fails here has no buckets to send
    for (StepExtension* extension : extensions_) extension->begin();
    pipe_->begin();
  });
  open_->suspects = audit_.begin_step();
}

// Takes the checksum that ranks compare in this step, with the first gradient since the last step or, if none arrives,
// when the step is sent.
void StepProtocol::take_checksum_if_due() {
  if (std::exchange(has_gradient_arrived_, true) || !audit_.is_due(step_)) return;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->before_comparison();
    audit_.take_checksum();
  });
}

// A parameter that is not one of the setup's gets a gradient: begins a step, in which send() finds that the module has
// changed.
void StepProtocol::on_other_gradient() {
  const auto held = lock();
  if (watch_.has_failed() || !synchronizes_) return;
  throw_if_lost();
  lose_group_if_unfinished();
  if (open_) return;
  failures_.leave_step();
  begin_step();
  take_checksum_if_due();
  watch_.attach();
}

void StepProtocol::on_gradient(size_t parameter) {
  const auto held = lock();
  if (watch_.has_failed()) return;  // this backward has failed in another thread, and its step is over
  throw_if_lost();
  lose_group_if_unfinished();
  const NamedTensor& which = setup_.parameters[parameter];
  if (open_ && open_->is_backward_over) {
    open_->failure = fmt::format(
        "{} received a gradient between backward and finish_gradient_synchronization(); expected that call right after every synchronising "
        "backward (accumulate earlier, under no_sync())",
        which.name);
    throw RuntimeError("DataParallel: " + *open_->failure);
  }
  failures_.leave_step();
  used_.record_arrival(parameter);
  if (!synchronizes_) {
    take_checksum_if_due();
    for (StepExtension* extension : extensions_) extension->check(parameter);
    return audit_.record_trace(parameter);
  }
  const bool begins = !open_;
  if (begins) begin_step();
  take_checksum_if_due();
  watch_.attach();
  if (!open_) return;  // this backward has failed meanwhile
  if (begins) skip_unreached();
  const at::Tensor& gradient = which.tensor.grad();
  if (!gradient.defined()) throw RuntimeError("DataParallel: " + why_gradient_is_gone(which));
  if (gradient.requires_grad()) {
    throw RuntimeError(
        fmt::format("DataParallel: the gradient of {} has a graph (backward with create_graph), which averaging would lose; expected "
                    "torch::autograd::grad(..., create_graph = true), with its result added to the loss before a single backward()",
                    which.name));
  }
  for (StepExtension* extension : extensions_) extension->check(parameter);
  pipe_->ready(parameter);
}

// Skips the parameters that this backward cannot reach, so that their buckets need not wait until it is over.
void StepProtocol::skip_unreached() {
  if (!setup_.options.find_unused_parameters || !pipe_->has_learned()) return;
  const std::vector<bool> may_reach = BackwardWatch::may_reach(follower_.nodes());
  for (size_t i = 0; i < may_reach.size(); ++i) {
    if (may_reach[i]) continue;
    used_.skip(i, setup_.parameters[i].tensor.grad().defined());
    pipe_->skip(i);
  }
}

void StepProtocol::on_backward_ended() {
  const std::lock_guard held(mutex_);
  if (!open_) return;
  open_->is_backward_over = true;
  if (!setup_.options.finish_with_backward) return;
  failures_.set_reported();
  send(RankState::kWithData);
  end_step();
  failures_.throw_if_failed();
}

void StepProtocol::on_backward_failed(const std::string& reason) {
  const std::lock_guard held(mutex_);
  if (!open_) return;
  try {
    open_->failure = reason;
    send(RankState::kFailed);
    end_step();
    failures_.set_thrown();
  } catch (...) {  // backward() is throwing already; the next call says that the group is lost
  }
}

// Loses the group if on_backward_ended() has begun to end the step, and an exception has kept it from doing so.
void StepProtocol::lose_group_if_unfinished() {
  if (!open_ || !open_->is_backward_over || !setup_.options.finish_with_backward) return;
  lose_group(RuntimeError("the gradients of the step did not arrive"));
}

void StepProtocol::finish_gradient_synchronization() {
  const auto held = enter();
  lose_group_if_unfinished();
  if (!open_) {
    failures_.throw_if_unreported();
    if (setup_.options.finish_with_backward || !synchronizes_) return;
    begin_step();
  }
  send(RankState::kWithData);
  end_step();
  failures_.set_reported();
  failures_.throw_if_failed();
}

void StepProtocol::abandon_step(const std::string& reason, const std::exception_ptr& caught) {
  const auto held = enter();
  lose_group_if_unfinished();
  if (open_) {
    failures_.set_caught(caught);
  } else {
    if (failures_.is_reported_by(caught)) return;  // see Note [Abandoned steps] in failure_record.h
    begin_step();
  }
  if (!open_->failure) open_->failure = reason;
  send(RankState::kFailed);
  end_step();
  failures_.set_abandoned();
}

bool StepProtocol::take_part_without_data() {
  const auto held = lock();
  if (open_) throw RuntimeError("join(): the last step is not finished; expected finish_gradient_synchronization() after its backward");
  begin_step();
  follower_.forget_gradients();
  send(RankState::kWithoutData);
  const bool any_rank_had_data = end_step();
  failures_.throw_if_failed();
  return any_rank_had_data;
}

void StepProtocol::audit() {
  const auto held = enter();
  if (open_) throw RuntimeError("audit() called within a step; expected between steps");
  const WaitPlaces::Call call(places_, "audit()");
  const std::string difference = or_lose_group([&] { return audit_.compare(step_, follower_.untouched_buffers()); });
  if (!difference.empty()) throw AuditError("DataParallel: " + difference);
}

// See Note [Counted optimizer steps]. A second step without a gradient is an error at once if the module holds none of
// the setup's parameters: those that replaced them have no hooks, so their backward begins no step.
void StepProtocol::count_optimizer_step(const void* optimizer) {
  const auto held = lock();
  if (is_lost() || is_capturing(setup_.parameters[0].tensor.device())) return;  // the optimiser steps when the graph is replayed
  if (!has_gradient_arrived_) {
    const bool is_first = step_ > 0 && !optimizer_steps_.has_counted(optimizer);
    if (is_first || !pipe_->are_gradients_placeholders()) {
      const uint64_t steps = optimizer_steps_.count(optimizer);
      if (steps > 1 && !follower_.holds_any_parameter()) throw RuntimeError(kAllReplaced);
    }
  }
  if (open_ || !audit_.is_due(step_)) return;
  or_lose_group([&] {
    for (StepExtension* extension : extensions_) extension->before_comparison();
    audit_.take_checksum_after_optimizer();
  });
}

void StepProtocol::add_audited(const void* owner, Audit::Tensors tensors) {
  const auto held = enter();
  audit_.add(owner, std::move(tensors));
}

void StepProtocol::forget_audited(const void* owner) {
  const auto held = lock();
  audit_.remove(owner);
  optimizer_steps_.forget(owner);
}

void StepProtocol::observe_steps(std::function<void()> observer) {
  const auto held = lock();
  observer_ = std::move(observer);
}

DataParallelStats StepProtocol::stats() const {
  const std::lock_guard held(mutex_);
  DataParallelStats result = stats_;
  result.buckets = pipe_->finished_stats();
  for (const int64_t parameter : pipe_->communication().order) {
    result.tensors.push_back(setup_.parameters[static_cast<size_t>(parameter)].name);
  }
  return result;
}

void StepProtocol::lose_group(const std::exception& error) {
  std::string why = first_line(error.what());
  if (dynamic_cast<const GroupError*>(&error) == nullptr) {
    try {
      give_up(setup_.group, fmt::format("{}: {}", where(), why));
    } catch (const GroupError& lost) {
      why = lost.what();
    }
  }
  set_lost(why);
  open_.reset();
  follower_.forget_gradients();
  throw GroupError(why);
}

void StepProtocol::set_lost(const std::string& why) {
  failures_.set_lost(fmt::format(
      "DataParallel: the process group was lost in step {}; end this process, so that its launcher starts all ranks anew: {}", step_, why));
}

}  // namespace firkin
