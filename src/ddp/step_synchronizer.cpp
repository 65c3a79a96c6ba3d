#include "step_synchronizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "autograd_errors.h"
#include "error_text.h"
#include "firkin/comm/group_error.h"

namespace firkin {

StepSynchronizer::StepSynchronizer(SynchronizerSetup setup)
    : setup_(std::move(setup)),
      agreement_(setup_.control, setup_.options.find_unused_parameters ? setup_.parameters.size() : 0),
      buffers_(setup_.control, setup_.group, setup_.options.broadcast_buffers ? setup_.buffers : std::vector<at::Tensor>{}),
      watch_({.ended = [this] { translated([this] { on_backward_ended(); }); },
              .failed = [this](const std::string& reason) { on_backward_failed(reason); }}),
      used_(setup_.parameters.size(), true) {}

void StepSynchronizer::install_hooks() {
  hooks_ = std::make_unique<ParameterHooks>(setup_.parameters, [this](size_t parameter) { translated([&] { on_gradient(parameter); }); });
}

const std::optional<StepFailure>& StepSynchronizer::last_failure() const {
  settle();
  return last_failure_;
}

bool StepSynchronizer::set_gradient_synchronization(bool on) {
  settle();
  const std::lock_guard lock(mutex_);
  return std::exchange(synchronizes_, on);
}

std::string StepSynchronizer::where() const {
  const std::string what = place();
  const std::string before = step_ == 0 ? "it has finished no step" : fmt::format("it last finished step {}", step_ - 1);
  return fmt::format("{} of step {}; {}", what.empty() ? "the end" : what, step_, before);
}

void StepSynchronizer::begin_step() {
  throw_if_lost();
  open_.emplace();
  try {
    begin_gradients(step_);
  } catch (const std::exception& error) {
    lose_group(error);  // there is nothing that this rank could send
  }
}

void StepSynchronizer::on_gradient(size_t parameter) {
  if (ignores_gradients()) return;
  settle();
  if (watch_.has_failed()) return;
  const std::lock_guard lock(mutex_);
  lose_unfinished_step();
  if (open_ && open_->is_backward_over) {
    open_->failure = fmt::format(
        "{} received a gradient between backward and finish_gradient_synchronization(); expected that call right after every backward that "
        "synchronises (accumulate before it, under no_sync())",
        setup_.parameters[parameter].name);
    throw RuntimeError("DataParallel: " + *open_->failure);
  }
  has_gradient_since_failure_ = true;
  if (!synchronizes_) return gradient_accumulated(parameter);
  if (!open_) begin_step();
  watch_.attach();
  if (!setup_.parameters[parameter].tensor.grad().defined()) {
    throw RuntimeError(fmt::format(
        "DataParallel: a hook has taken the gradient of {} before it was averaged; expected hooks that leave it in place, or a look after "
        "backward()",
        setup_.parameters[parameter].name));
  }
  gradient_ready(parameter);
}

void StepSynchronizer::on_backward_ended() {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  open_->is_backward_over = true;
  backward_ended();
  if (!setup_.options.finish_with_backward) return;
  has_unreported_failure_ = false;
  send(RankState::kWithData);
  if (arrives_by_callback()) {
    return BackwardWatch::when_callbacks_have_run([this] {
      translated([this] {
        const std::lock_guard later(mutex_);
        complete();
        throw_if_failed();
      });
    });
  }
  complete();
  throw_if_failed();
}

void StepSynchronizer::on_backward_failed(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  try {
    open_->failure = reason;
    send(RankState::kFailed);
    complete();
  } catch (...) {  // backward() is throwing already; the next call says that the group is lost
  }
}

// A step that was to end with backward and did not: what carries its gradients threw among autograd's final callbacks.
void StepSynchronizer::lose_unfinished_step() {
  if (!open_ || !open_->is_backward_over || !setup_.options.finish_with_backward) return;
  lose_group(RuntimeError("the gradients of the step did not arrive"));
}

void StepSynchronizer::finish() {
  settle();
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  lose_unfinished_step();
  const bool has_failed = std::exchange(has_unreported_failure_, false);
  if (!open_) {
    if (has_failed) throw_if_failed();
    if (setup_.options.finish_with_backward || !synchronizes_) return;
    begin_step();
  }
  send(RankState::kWithData);
  complete();
  has_unreported_failure_ = false;
  throw_if_failed();
}

void StepSynchronizer::abandon(const std::string& reason) {
  settle();
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  lose_unfinished_step();
  if (!open_) {
    if (last_failure_ && !has_gradient_since_failure_) return;
    begin_step();
  }
  if (!open_->failure) open_->failure = reason;
  send(RankState::kFailed);
  complete();
}

bool StepSynchronizer::take_part_without_data() {
  settle();
  const std::lock_guard lock(mutex_);
  if (open_) throw RuntimeError("Join: the last step is not finished; expected finish_gradient_synchronization() after its backward");
  begin_step();
  forget_all_gradients();
  send(RankState::kWithoutData);
  complete();
  throw_if_failed();
  return agreement_.ranks_with_data() > 0;
}

// Everything that this rank adds to the step is under way afterwards.
void StepSynchronizer::send(RankState state) {
  wait_started_ = std::chrono::steady_clock::now();
  try {
    if (state == RankState::kWithData) note_missing_gradients();
    if (state != RankState::kWithData) used_.assign(used_.size(), false);
    open_->error = send_gradients(open_->failure ? RankState::kFailed : state);
    if (open_->error && !open_->failure) open_->failure = message_of(open_->error);
    agreement_.launch(step_, open_->failure ? RankState::kFailed : state, used_);
    buffers_.launch(0);
  } catch (const std::exception& error) {
    lose_group(error);
  }
}

// Notes in the step which parameters this rank has used; unless it may, that it has not used all of them is a failure.
void StepSynchronizer::note_missing_gradients() {
  std::vector<std::string> missing;
  for (size_t i = 0; i < used_.size(); ++i) {
    used_[i] = has_gradient(i);
    if (!used_[i]) missing.push_back(setup_.parameters[i].name);
  }
  if (missing.empty() || setup_.options.find_unused_parameters || open_->failure) return;
  open_->failure = fmt::format(
      "no gradient for {}; expected every trainable parameter to take part in the loss (or set "
      "find_unused_parameters)",
      fmt::join(missing, ", "));
}

void StepSynchronizer::complete() {
  const int64_t finished_before = steps_finished_;
  try {
    agreement_.wait([this] { return where(); });
    const int first_failed = agreement_.first_failed();
    if (first_failed < setup_.group.size) {
      fail(first_failed);
    } else {
      succeed();
    }
    exposed_wait_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - wait_started_).count();
    if (steps_finished_ > finished_before) step_succeeded(agreement_);
  } catch (const std::exception& error) {
    lose_group(error);
  }
  open_.reset();
  ++step_;
}

void StepSynchronizer::succeed() {
  last_failure_.reset();
  last_error_ = nullptr;
  const int root = agreement_.first_with_data();
  if (root == setup_.group.size) {  // the end of a Join: no rank had anything to send
    drop_gradients();
    buffers_.wait(/*keep=*/false);
    return forget_all_gradients();
  }
  receive_gradients(agreement_);
  buffers_.wait(/*keep=*/root == 0);
  if (root != 0) {
    buffers_.launch(root);
    buffers_.wait(/*keep=*/true);
  }
  ++steps_finished_;
}

void StepSynchronizer::fail(int first_failed) {
  const std::string reason = agreement_.exchange_reason(first_line(open_->failure.value_or("")), first_failed);
  drop_gradients();
  buffers_.wait(/*keep=*/false);
  forget_all_gradients();
  last_failure_ = StepFailure{.rank = first_failed, .step = step_, .reason = reason};
  last_error_ = open_->error;
  has_gradient_since_failure_ = false;
  has_unreported_failure_ = true;
}

void StepSynchronizer::forget_all_gradients() {
  for (const NamedTensor& parameter : setup_.parameters) parameter.tensor.mutable_grad().reset();
}

void StepSynchronizer::throw_if_failed() const {
  if (last_error_) std::rethrow_exception(last_error_);
  if (last_failure_) throw StepError(*last_failure_);
}

void StepSynchronizer::lose_group(const std::exception& error) {
  std::string why = first_line(error.what());
  if (dynamic_cast<const GroupError*>(&error) == nullptr) {
    try {
      give_up(setup_.group, fmt::format("{}: {}", where(), why));
    } catch (const GroupError& lost) {
      why = lost.what();
    }
  }
  lost_ = fmt::format("DataParallel: the process group was lost in step {} and must be made anew: {}", step_, why);
  open_.reset();
  forget_all_gradients();
  throw GroupError(why);
}

void StepSynchronizer::throw_if_lost() const {
  if (lost_) throw GroupError(*lost_);
}

}  // namespace firkin
