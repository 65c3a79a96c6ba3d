// `--ranks N` of a training: a signal to the process that started the ranks is a wish that they end well, not their end.
#pragma once

#include <csignal>
#include <stop_token>
#include <thread>

namespace firkin::cli {

// While it lives, the first SIGINT, SIGTERM or SIGUSR1 to this process becomes a SIGUSR1 to each of its children (StopSignals of train/);
// the next one does what it would have done. Make it before any other thread is started: it blocks these signals in those to come, and in
// children, who unblock them when they are ready.
class PassedSignals {
 public:
  PassedSignals();
  ~PassedSignals();
  PassedSignals(const PassedSignals&) = delete;
  PassedSignals& operator=(const PassedSignals&) = delete;

 private:
  sigset_t previous_{};
  std::jthread waiter_;
};

}  // namespace firkin::cli
