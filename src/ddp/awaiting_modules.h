// Which modules of a network await their parameters, and whose parameters each of them awaits.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "firkin/ddp/module_parameters.h"

namespace firkin {

// Learned from the first forward: a parameter belongs to the innermost module that awaits and has it, itself or in a submodule. A tied
// parameter belongs to several, and one that no module awaits, or that is reached past all that do, belongs to nobody. Not thread-safe.
class AwaitingModules {
 public:
  AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters);

  // A module awaits, for learn(), or in a forward after it.
  void note(const torch::nn::Module& module);
  // From what was noted so far.
  void learn();
  bool has_learned() const { return has_learned_; }

  // Parameters, by index, that belong to the module. Empty for one that was not seen awaiting.
  const std::vector<size_t>& parameters_of(const torch::nn::Module& module) const;
  bool is_awaited(size_t parameter) const { return is_awaited_[parameter]; }
  // Per parameter: which of the awaiting modules needs it first, counted in the order in which they awaited; the number of modules where
  // nobody awaits it.
  const std::vector<int64_t>& first_need() const { return first_need_; }

  // A forward begins: nobody has awaited in it.
  void begin_forward();
  // The name of a module that the parameter belongs to and that has not awaited in this forward; empty when there is none.
  std::string missing_await(size_t parameter) const;

 private:
  struct Place {  // where a parameter is registered: the modules from the root down to its own
    size_t parameter = 0;
    std::vector<const torch::nn::Module*> path;
  };
  struct Owner {
    std::string name;
    int64_t turn = -1;  // in the first forward; -1: was not seen
    bool has_awaited = false;
    std::vector<size_t> parameters;
  };
  void add_places(const torch::nn::Module& module, const std::string& name, std::vector<const torch::nn::Module*>& path,
                  const std::unordered_map<const void*, size_t>& index_of);

  std::vector<Place> places_;
  std::unordered_map<const torch::nn::Module*, Owner> owners_;  // every module
  std::vector<std::vector<const Owner*>> owners_of_;            // per parameter
  std::vector<bool> is_awaited_;
  std::vector<int64_t> first_need_;
  int64_t turns_ = 0;
  bool has_learned_ = false;
};

}  // namespace firkin
