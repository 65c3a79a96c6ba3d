#include "failure_record.h"

#include <fmt/format.h>

#include <utility>

#include "firkin/base/error.h"

namespace firkin {
namespace {

// Whether Firkin has thrown it from a step that failed on every rank.
bool is_error_of_a_step(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const StepError&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

StepError::StepError(StepFailure failure)
    : RuntimeError(fmt::format("step {} failed on rank {}: {}", failure.step, failure.rank, failure.reason)),
      failure_(std::move(failure)) {}

void FailureRecord::note(StepFailure failure, std::exception_ptr own) {
  state_ = own ? State::kThrown : State::kFailed;
  failure_ = std::move(failure);
  own_ = std::move(own);
  is_unreported_ = true;
}

void FailureRecord::note_gradient() {
  if (state_ != State::kNone) state_ = State::kPast;
}

void FailureRecord::clear() {
  state_ = State::kNone;
  failure_.reset();
  own_ = nullptr;
  handled_ = nullptr;
}

void FailureRecord::throw_if_failed() const {
  if (own_) std::rethrow_exception(own_);
  if (failure_) throw StepError(*failure_);
}

void FailureRecord::report() {
  if (std::exchange(is_unreported_, false)) throw_if_failed();
}

bool FailureRecord::explains(const std::exception_ptr& handled) {
  const bool is_another = handled && !is_error_of_a_step(handled) && handled != handled_;
  note_handler(handled);
  if (state_ == State::kThrown && handled) {
    state_ = State::kFailed;
    return true;
  }
  return (state_ == State::kThrown || state_ == State::kFailed) && !is_another;
}

void FailureRecord::note_handler(const std::exception_ptr& handled) {
  if (handled) handled_ = handled;
}

void FailureRecord::throw_if_lost() const {
  if (loss_) throw GroupError(*loss_);
}

}  // namespace firkin
