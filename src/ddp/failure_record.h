// What a rank remembers of the failure of its last step, and of the loss of its group.
#pragma once

#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/data_parallel.h"

namespace firkin {

// Note [Abandoned steps]
// A program may call DataParallel::abandon_step() in the handler of every exception of its training loop. Such an
// exception has come either out of a step, which has then failed on all ranks, and nothing is left to do; or from the
// program itself, and then this rank has to fail the step that the others are in. A handler may also call it several
// times, or for a failure of which this rank got no exception. So it does nothing if a step has failed and no gradient
// has arrived since, unless the handler has another exception than in the call before: that is a second failure before
// any gradient, such as two bad batches in a row.
//
// Not thread-safe.
class FailureRecord {
 public:
  // The failure of the last step; none if it ended well.
  const std::optional<StepFailure>& failure() const { return failure_; }
  // A step has failed. own_error: what the step throws on this rank; null: a StepError.
  void set(StepFailure failure, std::exception_ptr own_error) {
    state_ = own_error ? State::kThrown : State::kFailed;
    failure_ = std::move(failure);
    own_error_ = std::move(own_error);
    is_unreported_ = true;
  }
  // The step has failed because backward() throws on this rank: the exception is on its way to a handler.
  void set_thrown() { state_ = State::kThrown; }
  // The step has failed by abandon_step(): no exception is on its way.
  void set_abandoned() { state_ = State::kFailed; }
  // A gradient has arrived: from now on, exceptions belong to another step.
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
  // The same, unless the failure was thrown before or set_reported() was called since.
  void throw_if_unreported() {
    if (std::exchange(is_unreported_, false)) throw_if_failed();
  }
  void set_reported() { is_unreported_ = false; }

  // Whether abandon_step() is called because the last step has failed; if not, another step has to fail. caught: the
  // exception in whose handler it is called, or null. See Note [Abandoned steps].
  bool is_reported_by(const std::exception_ptr& caught) {
    const bool is_another = caught && !is_error_of_a_step(caught) && caught != caught_;
    set_caught(caught);
    if (state_ == State::kThrown && caught) {
      state_ = State::kFailed;
      return true;
    }
    return (state_ == State::kThrown || state_ == State::kFailed) && !is_another;
  }
  // abandon_step() fails an open step. caught: as in is_reported_by().
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
    kNone,    // the last step ended well, or a gradient has arrived since
    kThrown,  // it failed, and an exception of this rank is on its way to a handler
    kFailed,  // it failed otherwise, or a handler has that exception
  };

  // Whether Firkin has thrown the error from a step that failed on every rank.
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
  std::exception_ptr caught_;  // the one that the last abandon_step() was given
  bool is_unreported_ = false;
  std::optional<std::string> loss_;
};

}  // namespace firkin
