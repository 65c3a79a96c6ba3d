// Which modules await their parameters in a forward, and when. This is learned from the first forward: LibTorch's C++
// modules have no forward hooks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "firkin/ddp/module_parameters.h"

#include <torch/nn/module.h>

namespace firkin {

// Why these parameters cannot be stepped one by one, as they are needed: two share memory. Empty if they can.
std::string why_not_awaited(std::vector<NamedTensor> parameters);

// Learns from the first forward which module a parameter belongs to: the innermost awaiting one that holds it, itself
// or in a submodule. A tied parameter may belong to several, one that is used without an await to none. Not
// thread-safe.
class AwaitingModules {
 public:
  // While this lives, `on_await` is called for every await_parameters() of the module and of its submodules: on the thread
  // that runs the forward, without a lock. No forward of the module may run while this is made or destroyed.
  using OnAwait = std::function<void(const torch::nn::Module& module)>;
  AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters, OnAwait on_await);
  ~AwaitingModules();
  AwaitingModules(const AwaitingModules&) = delete;
  AwaitingModules& operator=(const AwaitingModules&) = delete;

  // Call it when a module awaits its parameters. moment: grows within a forward. Returns whether it is one of the modules
  // and has not awaited in this forward before.
  bool record_await(const torch::nn::Module& module, int64_t moment);
  // Learns from what was recorded so far. The module must not have changed since.
  void learn();

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
  // Call it when these parameters, by index, were received in this forward, for a module or for other code.
  void record_received(const std::vector<size_t>& parameters) { received_.insert(parameters.begin(), parameters.end()); }
  // Call it for a gradient whose parameter was in flight when the forward began. Throws RuntimeError naming a module
  // that the parameter belongs to and that has not awaited it in this forward: it has used an old value.
  void check_awaited(size_t parameter, const std::string& name) const;

 private:
  friend void await_parameters(const torch::nn::Module& module);
  struct Owner {
    std::string name;
    bool was_seen = false;  // awaiting in the first forward
    bool has_awaited = false;
    int64_t awaited_at = 0;
    std::vector<size_t> parameters;
  };
  void learn(const torch::nn::Module& module, Owner* innermost);

  const torch::nn::Module& root_;
  OnAwait on_await_;
  std::unordered_map<const void*, size_t> index_of_;            // by parameter
  std::unordered_map<const torch::nn::Module*, Owner> owners_;  // every module
  std::vector<std::vector<const Owner*>> owners_of_;            // per parameter
  std::vector<bool> is_awaited_;                                // wherever it is registered
  std::unordered_set<size_t> received_;                         // in this forward, as recorded
  bool has_learned_ = false;
};

}  // namespace firkin
