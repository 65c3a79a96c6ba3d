// What a rank remembers of its last step's failure, and of the loss of its group.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"

namespace firkin {

// The failure of the last step, and the loss of the group. Not thread-safe.
class FailureRecord {
 public:
  // The failure of the last step.
  const std::optional<StepFailure>& failure() const { return failure_; }
  // own: the exception that this rank's step throws; null: it throws a StepError.
  void note(StepFailure failure, std::exception_ptr own) {
    state_ = own ? State::kThrown : State::kFailed;
    failure_ = std::move(failure);
    own_ = std::move(own);
    is_unreported_ = true;
  }
  // Call it when this rank's own exception leaves backward(), before any handler has seen it.
  void note_own_exception() { state_ = State::kThrown; }
  // Call it for a gradient: from now on, exceptions belong to another step.
  void note_gradient() {
    if (state_ != State::kNone) state_ = State::kPast;
  }
  // To be called when a step has ended well.
  void clear() {
    state_ = State::kNone;
    failure_.reset();
    own_ = nullptr;
    handled_ = nullptr;
  }
  // Throws the failure of the last step, if it failed.
  void throw_if_failed() const {
    if (own_) std::rethrow_exception(own_);
    if (failure_) throw StepError(*failure_);
  }
  // Throws the failure of the last step if no call has thrown it yet.
  void report() {
    if (std::exchange(is_unreported_, false)) throw_if_failed();
  }
  void forget_report() { is_unreported_ = false; }

  // For a call of abandon_step(), with the exception that is being handled (null outside of a handler). Returns whether
  // the call is about the failure of the last step. If not, another step is to fail: either a gradient has come since,
  // or the exception is another one of the program's own, thrown before any gradient. A handler may call abandon_step()
  // several times, also for a failure that it did not cause.
  bool explains(const std::exception_ptr& handled) {
    const bool is_another = handled && !is_error_of_a_step(handled) && handled != handled_;
    note_handler(handled);
    if (state_ == State::kThrown && handled) {
      state_ = State::kFailed;
      return true;
    }
    return (state_ == State::kThrown || state_ == State::kFailed) && !is_another;
  }
  // For such a call within an open step, which it is then about.
  void note_handler(const std::exception_ptr& handled) {
    if (handled) handled_ = handled;
  }
  // Call it when a step has failed because of abandon_step().
  void note_abandoned() { state_ = State::kFailed; }

  bool is_lost() const { return loss_.has_value(); }
  void note_loss(std::string message) { loss_ = std::move(message); }
  void throw_if_lost() const {
    if (loss_) throw GroupError(*loss_);
  }

 private:
  enum class State {
    kNone,    // the last step ended well, or there was none
    kThrown,  // it failed on this rank too, with an exception that is on its way to a handler
    kFailed,  // it failed, and no gradient has come since
    kPast,    // it failed, and a gradient has come since
  };

  // Whether Firkin has thrown it from a step that failed on every rank.
  static bool is_error_of_a_step(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const StepError&) {
      return true;
    } catch (...) {
      return false;
    }
  }

  State state_ = State::kNone;
  std::optional<StepFailure> failure_;
  std::exception_ptr own_;
  std::exception_ptr handled_;  // the exception that was being handled when abandon_step() was called last
  bool is_unreported_ = false;
  std::optional<std::string> loss_;
};

}  // namespace firkin
