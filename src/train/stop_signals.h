// SIGTERM, SIGINT and SIGUSR1 (Slurm's --signal) as a wish: finish the step, write a checkpoint, end.
#pragma once

#include <array>
#include <csignal>

namespace firkin {

// While it lives, the first of each of these signals is remembered, and the next ends the process. Who started this process may have
// blocked them, so that none is lost before: they are unblocked in this thread. One at a time.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool received() const;

 private:
  static constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1};
  std::array<struct sigaction, kSignals.size()> previous_{};
};

}  // namespace firkin
