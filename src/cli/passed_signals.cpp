#include "passed_signals.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <fstream>
#include <vector>

namespace firkin::cli {
namespace {

sigset_t wishes() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  return set;
}

// Of the main thread, which starts the ranks. Empty where the kernel does not say.
std::vector<pid_t> children() {
  std::ifstream in(fmt::format("/proc/self/task/{}/children", getpid()));
  std::vector<pid_t> found;
  for (pid_t child = 0; in >> child;) found.push_back(child);
  return found;
}

void wait_for_signals(const std::stop_token& stop) {
  const sigset_t set = wishes();
  bool passed = false;
  while (!stop.stop_requested()) {
    const timespec patience{.tv_sec = 0, .tv_nsec = 200'000'000};
    const int signal = sigtimedwait(&set, nullptr, &patience);
    if (signal < 0) continue;
    const std::vector<pid_t> ranks = children();
    if (passed || ranks.empty()) {
      pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
      kill(getpid(), signal);
      return;
    }
    fmt::print(stderr, "\nfirkin: {}; the ranks finish their step\n", strsignal(signal));
    for (const pid_t rank : ranks) kill(rank, SIGUSR1);
    passed = true;
  }
}

}  // namespace

PassedSignals::PassedSignals() {
  const sigset_t set = wishes();
  pthread_sigmask(SIG_BLOCK, &set, &previous_);
  waiter_ = std::jthread(wait_for_signals);
}

PassedSignals::~PassedSignals() {
  waiter_.request_stop();
  waiter_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

}  // namespace firkin::cli
