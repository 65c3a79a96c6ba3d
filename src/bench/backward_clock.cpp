#include "backward_clock.h"

namespace firkin {
namespace {

// RecordFunction's callbacks are plain functions.
thread_local BackwardClock* clock_of_this_thread = nullptr;

}  // namespace

BackwardClock::BackwardClock()
    : callback_(at::addThreadLocalCallback(
          at::RecordFunctionCallback(&function_begins, &function_ends).scopes({at::RecordScope::BACKWARD_FUNCTION}))) {
  clock_of_this_thread = this;
}

BackwardClock::~BackwardClock() {
  at::removeCallback(callback_);
  clock_of_this_thread = nullptr;
}

std::unique_ptr<at::ObserverContext> BackwardClock::function_begins(const at::RecordFunction& /*function*/) {
  BackwardClock* clock = clock_of_this_thread;
  if (clock != nullptr && !clock->began_) clock->began_ = std::chrono::steady_clock::now();
  return nullptr;
}

void BackwardClock::function_ends(const at::RecordFunction& /*function*/, at::ObserverContext* /*context*/) {
  if (clock_of_this_thread != nullptr) clock_of_this_thread->ended_ = std::chrono::steady_clock::now();
}

}  // namespace firkin
