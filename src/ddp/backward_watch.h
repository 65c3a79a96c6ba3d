// Tells when the backward that runs has ended, and whether it threw; and what leaves backward() when we throw.
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

// Keyed by autograd's graph tasks: a re-entrant backward (activation checkpointing) is a graph task within another one, and only the
// outermost counts. `ended` is one of autograd's final callbacks, so that what it throws comes out of backward(); `failed` comes while the
// exception is on its way out of backward(), so it must not throw. Both have the streams as current ones that the caller of backward() has.
// A backward that throws before the first attach() is not noticed.
//
// Which thread calls them is autograd's choice: where gradients lie on a GPU, `failed` comes from the thread of that GPU. backward() throws
// after it, unless its own thread was busy with nodes on the CPU: settle() is for that.
class BackwardWatch {
 public:
  struct Callbacks {
    std::function<void()> ended;
    std::function<void(const std::string& reason)> failed;
  };
  explicit BackwardWatch(Callbacks callbacks);
  ~BackwardWatch();
  // Settles, and waits until a callback that runs in another thread is over; afterwards none is called.
  void close();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // From a hook: watches the backward that calls it. Cheap when that is watched already. Not thread-safe.
  void attach();

  // From a hook: the backward that calls it has failed, in another thread.
  bool has_failed() const;

  // From a hook: whether the backward that calls it may come to these nodes, per node. Exact where it consists of autograd's own functions;
  // where it has others, which may begin a backward within it (activation checkpointing), and within such a one, all count as reached.
  static std::vector<bool> may_reach(const std::vector<const torch::autograd::Node*>& nodes);

  // A backward runs on this thread, and not within another one (activation checkpointing).
  static bool is_in_outermost();

  // Stands for the thread that called the backward that runs; null outside of one.
  static const void* caller();

  // First in whatever the caller of backward() may do next, and in a hook: when a backward that was watched has thrown, `failed` has run
  // afterwards. Thread-safe; not to be called with a lock that `failed` takes.
  void settle() const;

 private:
  struct State;
  struct Token;
  static void attach(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

// Called where an error is about to leave, within its catch block: may throw another one instead. Python needs this, which would see every
// error as a RuntimeError. Without: errors leave as they are. Set it before any module is wrapped.
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

// What an error says, as one line: LibTorch's bring a backtrace after it.
inline std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}
std::string message_of(const std::exception_ptr& error);

}  // namespace firkin
