// Notices when the running backward has ended or thrown, and decides which exception leaves backward() when Firkin
// throws.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace torch::autograd {
struct Node;
}

namespace firkin {

// Calls `ended` when a backward is over, and `failed` when it throws. Autograd runs a backward as a graph task. A
// re-entrant backward (activation checkpointing) is a graph task within another one, and only the outermost counts.
// Both callbacks run with the current streams of backward()'s caller. A backward that throws before the first attach()
// goes unnoticed.
//
// Note [Threads of a failed backward]
// Autograd calls `ended` as one of its final callbacks, so what that throws comes out of backward(). Autograd calls
// `failed` on the thread that has met the exception, while the exception is on its way: so it must not throw. With
// gradients on a GPU that is a thread of the GPU's own. Usually backward() throws after `failed` has returned. But if
// its caller's thread was busy with nodes on the CPU, backward() throws while `failed` still runs, and the program may
// call Firkin meanwhile. settle() then waits for `failed` to return.
class BackwardWatch {
 public:
  BackwardWatch(std::function<void()> ended, std::function<void(const std::string& reason)> failed);
  ~BackwardWatch();
  // Calls settle(), then waits for a callback that runs on another thread. Afterwards none is called.
  void close();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // Called by a hook: watches the backward that has called the hook. Cheap if that is watched already. Not thread-safe.
  void attach();

  // Called by a hook: whether the backward that has called the hook has failed, in another thread.
  bool has_failed() const;

  // Called by a hook: per node, whether the backward that has called the hook may reach it. Exact for a backward that
  // consists of autograd's own functions. Other functions may begin a backward within it (activation checkpointing): if
  // there are some, or this is such an inner backward, the answer is true for all nodes.
  static std::vector<bool> may_reach(const std::vector<const torch::autograd::Node*>& nodes);

  // Whether this thread runs a backward that is not within another one (activation checkpointing).
  static bool is_in_outermost();

  // An address that stands for the thread that called the running backward; null outside of one.
  static const void* caller();

  // Waits until `failed` has returned for every watched backward that has thrown. Call it first in hooks and in every
  // method that may be called after backward(). Thread-safe. Do not call it with a lock that `failed` takes. See
  // Note [Threads of a failed backward].
  void settle() const;

 private:
  struct State;
  struct Token;
  static void attach(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

// Before Firkin throws an error through autograd, it calls `translate` within the error's catch block, which may throw
// another error instead. Without this, Python would see every error as a RuntimeError. Set it before any module is
// wrapped.
void set_autograd_error_translation(void (*translate)());

// Within a catch block: translates what is caught, and throws it again.
[[noreturn]] void rethrow_to_autograd();

template <typename Body>
void translated(Body body) {
  try {
    body();
  } catch (...) {
    rethrow_to_autograd();
  }
}

// The first line of an error's message; LibTorch appends a backtrace.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}
std::string message_of(const std::exception_ptr& error);

}  // namespace firkin
