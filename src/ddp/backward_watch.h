// Tells when the backward that runs has ended, and whether it threw.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <memory>
#include <string>

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
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // From a hook: watches the backward that calls it. Cheap when that is watched already. Not thread-safe.
  void attach();

  // From a hook: the backward that calls it has failed, in another thread.
  bool has_failed() const;

  // First in whatever the caller of backward() may do next, and in a hook: when a backward that was watched has thrown, `failed` has run
  // afterwards. Thread-safe; not to be called with a lock that `failed` takes.
  void settle() const;

  // From `ended`: runs `callback` after autograd's other final callbacks. What it throws comes out of backward() as well.
  static void when_callbacks_have_run(std::function<void()> callback);

 private:
  struct State;
  struct Token;
  static void attach(const std::shared_ptr<State>& state);
  static void tell_of_exception(c10::ivalue::Future& result, const std::weak_ptr<Token>& token);

  std::shared_ptr<State> state_;
};

}  // namespace firkin
