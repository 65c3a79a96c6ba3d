// Who is told that a module awaits its parameters.
#pragma once

#include <vector>

#include <torch/nn/module.h>

namespace firkin {

class ForwardListener {
 public:
  virtual ~ForwardListener() = default;
  // The module is about to use its parameters. Called on the thread that runs its forward, without a lock.
  virtual void module_awaits(const torch::nn::Module& module) = 0;
};

// While it lives, `listener` is told of every await_parameters() of the module and of its submodules. Thread-safe; a forward of the module
// must not run while it is made or destroyed.
class Listening {
 public:
  Listening(torch::nn::Module& module, ForwardListener& listener);
  ~Listening();
  Listening(const Listening&) = delete;
  Listening& operator=(const Listening&) = delete;

 private:
  std::vector<const torch::nn::Module*> modules_;
  ForwardListener* listener_;
};

}  // namespace firkin
