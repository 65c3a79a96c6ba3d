// Which modules await their parameters in a forward, and when. The first forward shows it, because modules of LibTorch
// 2.13 have no forward hooks.
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

// Why an optimiser cannot step these parameters one at a time, as modules need them: two share memory. Empty if it can.
std::string why_not_awaited(std::vector<NamedTensor> parameters);

// Learns from the first forward which module a parameter belongs to: the innermost module that awaits and holds it,
// itself or in a submodule. A tied parameter may belong to several modules, and one that no module awaits belongs to
// none. Not thread-safe.
class AwaitingModules {
 public:
  // Calls `on_await` for every await_parameters() of the module and of its submodules, on the thread that runs the
  // forward, without a lock. No forward of the module may run while this is made or destroyed.
  using OnAwait = std::function<void(const torch::nn::Module& module)>;
  AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters, OnAwait on_await);
  ~AwaitingModules();
  AwaitingModules(const AwaitingModules&) = delete;
  AwaitingModules& operator=(const AwaitingModules&) = delete;

  // Call it when a module awaits its parameters. moment: a number that grows within a forward. Returns whether the
  // module is one of these and has not awaited in this forward before.
  bool record_await(const torch::nn::Module& module, int64_t moment);
  // Learns from what was recorded so far. The module must not have changed since.
  void learn();

  // The indices of all parameters in a module, whichever modules await them.
  std::vector<size_t> indices_in(const torch::nn::Module& module) const;
  // The indices of the parameters that belong to the module; empty if it did not await in the first forward.
  const std::vector<size_t>& parameters_of(const torch::nn::Module& module) const;
  bool is_awaited(size_t parameter) const { return is_awaited_[parameter]; }
  // The moment at which the last forward first used the parameter; 0 if no module awaits it, because it must then have
  // arrived when the step ends.
  int64_t first_use(size_t parameter) const;

  // Begins a forward: no module has awaited in it yet.
  void begin_forward();
  // Call it when parameters, by index, have been received in this forward for other code than a module's await.
  void record_received(const std::vector<size_t>& parameters) { received_.insert(parameters.begin(), parameters.end()); }
  // Call it for a gradient whose parameter was in flight when the forward began. If a module that the parameter belongs
  // to has not awaited in this forward, it has used an old value: throws RuntimeError naming it.
  void check_awaited(size_t parameter, const std::string& name) const;

 private:
  friend void await_parameters(const torch::nn::Module& module);
  struct Owner {
    std::string name;
    bool awaits = false;  // it did in the first forward
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
  std::vector<bool> is_awaited_;                                // by a module around each place where it is registered
  std::unordered_set<size_t> received_;                         // in this forward, as recorded
  bool has_learned_ = false;
};

}  // namespace firkin
