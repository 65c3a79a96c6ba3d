// Tells when the backward that runs has ended, and whether it threw.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace firkin {

// Keyed by autograd's graph tasks: a re-entrant backward (activation checkpointing) is a graph task within another one, and only the
// outermost counts. Callbacks come from the thread that runs backward: `ended` as one of autograd's final callbacks, so that what it throws
// comes out of backward(); `failed` while the exception is on its way out of backward(), so it must not throw. A backward that throws
// before the first attach() is not noticed.
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

  // From `ended`: runs `callback` after autograd's other final callbacks. What it throws comes out of backward() as well.
  static void when_callbacks_have_run(std::function<void()> callback);

 private:
  class Reason;
  struct State;
  struct Token;
  static void attach(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;
};

}  // namespace firkin
