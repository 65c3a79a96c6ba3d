// Which modules await their parameters in forward, and when: LibTorch's C++ modules have no forward hooks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "firkin/ddp/module_parameters.h"

#include <torch/nn/module.h>

namespace firkin {

// While it lives, `listener` is told of every await_parameters() of the module and of its submodules: on the thread
// that runs the forward, without a lock. Thread-safe; a forward of the module must not run while it is made or
// destroyed.
class ForwardListening {
 public:
  using Listener = std::function<void(const torch::nn::Module& module)>;

  ForwardListening(torch::nn::Module& module, Listener listener);
  ~ForwardListening();
  ForwardListening(const ForwardListening&) = delete;
  ForwardListening& operator=(const ForwardListening&) = delete;

 private:
  std::vector<const torch::nn::Module*> modules_;
  Listener listener_;
};

// Learns from the first forward which module a parameter belongs to: the innermost one that awaits and has it, itself
// or in a submodule. A tied parameter belongs to several. One that no module awaits, or that is reached past all that
// do, belongs to none. Not thread-safe.
class AwaitingModules {
 public:
  AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters);

  // Notes that a module awaits its parameters, for learn() or in a later forward, at this moment, a number that grows
  // within a forward. Returns whether it is one of the modules, and has not awaited in this forward before.
  bool note(const torch::nn::Module& module, int64_t moment);
  // Learns from what was noted so far. The module must not have changed since.
  void learn();
  bool has_learned() const { return has_learned_; }

  // Parameters, by index, of a module and of those in it, whoever awaits them.
  std::vector<size_t> indices_in(const torch::nn::Module& module) const;
  // Parameters, by index, that belong to the module. Empty for one that was not seen awaiting.
  const std::vector<size_t>& parameters_of(const torch::nn::Module& module) const;
  bool is_awaited(size_t parameter) const { return is_awaited_[parameter]; }
  // The moment at which the last forward first used the parameter. 0 if no module awaits it: it must be there when
  // backward ends.
  int64_t first_use(size_t parameter) const;

  // Begins a forward: no module has awaited in it yet.
  void begin_forward();
  // Call it for a gradient whose parameter was in flight when the forward began. Throws RuntimeError naming a module
  // that the parameter belongs to and that has not awaited it in this forward: it has used an old value.
  void check_awaited(size_t parameter, const std::string& name) const;

 private:
  struct Owner {
    std::string name;
    bool was_seen = false;  // awaiting in the first forward
    bool has_awaited = false;
    int64_t awaited_at = 0;
    std::vector<size_t> parameters;
  };
  void learn(const torch::nn::Module& module, Owner* innermost);

  const torch::nn::Module& root_;
  std::unordered_map<const void*, size_t> index_of_;            // by parameter
  std::unordered_map<const torch::nn::Module*, Owner> owners_;  // every module
  std::vector<std::vector<const Owner*>> owners_of_;            // per parameter
  std::vector<bool> is_awaited_;                                // wherever it is registered
  bool has_learned_ = false;
};

}  // namespace firkin
