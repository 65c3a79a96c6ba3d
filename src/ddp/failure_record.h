// What a rank remembers of its last step's failure, and of the loss of its group.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"

namespace firkin {

// Not thread-safe.
class FailureRecord {
 public:
  // The failure of the last step.
  const std::optional<StepFailure>& failure() const { return failure_; }
  // A step has failed. own: the exception that this rank's step throws; null: it throws a StepError.
  void set(StepFailure failure, std::exception_ptr own) {
    state_ = own ? State::kThrown : State::kFailed;
    failure_ = std::move(failure);
    own_error_ = std::move(own);
    is_unreported_ = true;
  }
  // This rank's own exception leaves backward(), and no handler has seen it yet.
  void set_thrown() { state_ = State::kThrown; }
  // The step has failed because of abandon_step().
  void set_abandoned() { state_ = State::kFailed; }
  // A gradient has come: from now on, exceptions belong to another step.
  void leave_step() { state_ = State::kNone; }
  // A step has ended well.
  void clear() {
    state_ = State::kNone;
    failure_.reset();
    own_error_ = nullptr;
    caught_ = nullptr;
  }
  // Throws the failure of the last step, if it failed.
  void throw_if_failed() const {
    if (own_error_) std::rethrow_exception(own_error_);
    if (failure_) throw StepError(*failure_);
  }
  // Throws the failure of the last step if no call has thrown it yet.
  void throw_if_unreported() {
    if (std::exchange(is_unreported_, false)) throw_if_failed();
  }
  void set_reported() { is_unreported_ = false; }

  // Returns true if abandon_step() reports the failure of the step that just ended, false if it must fail a new one: a
  // gradient has come since, or the program has thrown another exception before any. A handler may call abandon_step()
  // several times, also for a failure that it did not cause. caught: the exception in whose handler it is called, or
  // null.
  bool is_reported_by(const std::exception_ptr& caught) {
    const bool is_another = caught && !is_error_of_a_step(caught) && caught != caught_;
    set_caught(caught);
    if (state_ == State::kThrown && caught) {
      state_ = State::kFailed;
      return true;
    }
    return (state_ == State::kThrown || state_ == State::kFailed) && !is_another;
  }
  // abandon_step() is called within an open step, in the handler of this exception (or null).
  void set_caught(const std::exception_ptr& caught) {
    if (caught) caught_ = caught;
  }

  bool is_lost() const { return loss_.has_value(); }
  void set_lost(std::string message) { loss_ = std::move(message); }
  void throw_if_lost() const {
    if (loss_) throw GroupError(*loss_);
  }

 private:
  enum class State {
    kNone,    // the last step ended well, or a gradient has come since
    kThrown,  // it failed on this rank too, with an exception that is on its way to a handler
    kFailed,  // it failed
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
  std::exception_ptr own_error_;
  std::exception_ptr caught_;  // the exception that was being handled when abandon_step() was called last
  bool is_unreported_ = false;
  std::optional<std::string> loss_;
};

}  // namespace firkin
