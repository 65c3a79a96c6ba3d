// Notes when autograd begins and ends to run a backward pass that somebody else starts.
#pragma once

#include <ATen/record_function.h>

#include <chrono>
#include <memory>
#include <optional>

namespace firkin {

// Watches the backward passes that the constructing thread runs, for as long as it lives: those on the CPU. One at a time per thread.
class BackwardClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  BackwardClock();
  ~BackwardClock();
  BackwardClock(const BackwardClock&) = delete;
  BackwardClock& operator=(const BackwardClock&) = delete;

  // Of the first function of all backward passes since the construction; nothing when there was none.
  const std::optional<Time>& began() const { return began_; }
  // Of the last one, gradients accumulated and hooks run.
  Time ended() const { return ended_; }

 private:
  static std::unique_ptr<at::ObserverContext> function_begins(const at::RecordFunction& function);
  static void function_ends(const at::RecordFunction& function, at::ObserverContext* context);

  std::optional<Time> began_;
  Time ended_;
  at::CallbackHandle callback_;
};

}  // namespace firkin
