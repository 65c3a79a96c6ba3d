// What a rank remembers of its last step's failure, and of the loss of its group.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "firkin/ddp/data_parallel.h"

namespace firkin {

// Not thread-safe.
class FailureRecord {
 public:
  // Of the last step.
  const std::optional<StepFailure>& failure() const { return failure_; }
  // own: what this rank's step throws for it; null: a StepError.
  void note(StepFailure failure, std::exception_ptr own);
  // This rank's own exception leaves backward(): nobody has handled it.
  void note_own_exception() { state_ = State::kThrown; }
  // What comes now belongs to another step.
  void note_gradient();
  // A step has ended well.
  void clear();
  // Throws the failure of the last step, if it failed.
  void throw_if_failed() const;
  // Once after a failure that no call has thrown yet; throws it.
  void report();
  void forget_report() { is_unreported_ = false; }

  // abandon_step() is called, in a handler or outside of any (null). Returns whether this is about the failure of the last step; otherwise
  // another step is to fail: a gradient has come since, or what is handled is another exception of the program's own, which has come before
  // any gradient. A handler may call it several times, and for a failure that it did not cause.
  bool explains(const std::exception_ptr& handled);
  // The same within a step that is open: it is this step's.
  void note_handler(const std::exception_ptr& handled);
  // The step that abandon_step() was called for has failed.
  void note_abandoned() { state_ = State::kFailed; }

  bool is_lost() const { return loss_.has_value(); }
  void note_loss(std::string message) { loss_ = std::move(message); }
  void throw_if_lost() const;  // GroupError

 private:
  enum class State {
    kNone,    // the last step ended well, or there was none
    kThrown,  // it failed on this rank too, whose own exception is on its way to a handler
    kFailed,  // it failed, and no gradient has come since
    kPast,    // one has
  };

  State state_ = State::kNone;
  std::optional<StepFailure> failure_;
  std::exception_ptr own_;
  std::exception_ptr handled_;  // what the last handler that called abandon_step() handled
  bool is_unreported_ = false;
  std::optional<std::string> loss_;
};

}  // namespace firkin
