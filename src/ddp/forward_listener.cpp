#include "forward_listener.h"

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "firkin/ddp/await_parameters.h"

namespace firkin {
namespace {

struct Listeners {
  std::mutex mutex;
  std::unordered_multimap<const torch::nn::Module*, ForwardListener*> of_module;
};

std::atomic<int> listening_count = 0;

Listeners& listeners() {
  static Listeners* const kListeners = new Listeners;  // never destroyed: modules may outlive static objects
  return *kListeners;
}

}  // namespace

Listening::Listening(torch::nn::Module& module, ForwardListener& listener) : listener_(&listener) {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const auto& submodule : module.modules(/*include_self=*/false)) modules_.push_back(submodule.get());
  modules_.push_back(&module);
  for (const torch::nn::Module* each : modules_) all.of_module.emplace(each, listener_);
  ++listening_count;
}

Listening::~Listening() {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const torch::nn::Module* each : modules_) {
    const auto [first, last] = all.of_module.equal_range(each);
    for (auto entry = first; entry != last; ++entry) {
      if (entry->second != listener_) continue;
      all.of_module.erase(entry);
      break;
    }
  }
  --listening_count;
}

void await_parameters(const torch::nn::Module& module) {
  if (listening_count.load(std::memory_order_acquire) == 0) return;
  std::vector<ForwardListener*> told;
  {
    Listeners& all = listeners();
    const std::lock_guard lock(all.mutex);
    const auto [first, last] = all.of_module.equal_range(&module);
    for (auto entry = first; entry != last; ++entry) told.push_back(entry->second);
  }
  for (ForwardListener* listener : told) listener->module_awaits(module);
}

}  // namespace firkin
