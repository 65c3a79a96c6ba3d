#include "train/stop_signals.h"

#include <atomic>
#include <cstddef>

namespace firkin {
namespace {

std::atomic<bool> received_one = false;
static_assert(std::atomic<bool>::is_always_lock_free);

}  // namespace

StopSignals::StopSignals() {
  received_one = false;
  struct sigaction action {};
  action.sa_handler = [](int) { received_one = true; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &action, &previous_[i]);
    sigaddset(&set, kSignals[i]);
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

StopSignals::~StopSignals() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &previous_[i], nullptr);
}

bool StopSignals::received() const {
  return received_one;
}

}  // namespace firkin
