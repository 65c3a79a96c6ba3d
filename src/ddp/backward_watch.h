// Tells when the running backward has ended and whether it threw, and which exception leaves backward() when Firkin
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

// Keyed by autograd's graph tasks: a re-entrant backward (activation checkpointing) is a graph task within another one,
// and only the outermost counts. `ended` is one of autograd's final callbacks, so that what it throws comes out of
// backward(); `failed` comes while the exception is on its way out of backward(), so it must not throw. Both run with
// the current streams of backward()'s caller. A backward that throws before the first attach() is not noticed.
//
// Autograd chooses the thread that calls them: with gradients on a GPU, `failed` comes from the thread of that GPU.
// backward() throws after `failed` has run, unless its own thread was busy with nodes on the CPU: that is what settle()
// is for.
class BackwardWatch {
 public:
  BackwardWatch(std::function<void()> ended, std::function<void(const std::string& reason)> failed);
  ~BackwardWatch();
  // Calls settle(), then waits for a callback that runs in another thread; afterwards none is called.
  void close();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // From a hook: watches the backward that calls it. Cheap if that is watched already. Not thread-safe.
  void attach();

  // From a hook: the backward that calls it has failed, in another thread.
  bool has_failed() const;

  // From a hook: whether the backward that calls it may reach these nodes, per node. Exact if it
  // consists of autograd's own functions. If it has others, which may begin a backward within it
  // (activation checkpointing), or is such an inner backward, all count as reached.
  static std::vector<bool> may_reach(const std::vector<const torch::autograd::Node*>& nodes);

  // Whether this thread runs a backward that is not within another one (activation checkpointing).
  static bool is_in_outermost();

  // An address that stands for the thread that called the running backward; null outside of one.
  static const void* caller();

  // Waits until `failed` has run for every watched backward that has thrown. Call it first in hooks and in every method
  // that may be called after backward(). Thread-safe; do not call it with a lock that `failed` takes.
  void settle() const;

 private:
  struct State;
  struct Token;
  static void attach(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

// `translate` is called within the catch block of an error that is about to leave, and may throw another one instead.
// Python needs this, because it would see every error as a RuntimeError. By default errors leave as they are. Set it
// before any module is wrapped.
void set_autograd_error_translation(void (*translate)());

// Within a catch block: rethrows what is caught, translated.
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
