#include "awaiting_modules.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"

namespace firkin {
namespace {

struct Listeners {
  std::mutex mutex;
  std::unordered_multimap<const torch::nn::Module*, const ForwardListening::Listener*> of_module;
};

std::atomic<int> listening_count = 0;

Listeners& listeners() {
  static Listeners* const kListeners = new Listeners;  // never destroyed: modules may outlive static objects
  return *kListeners;
}

}  // namespace

ForwardListening::ForwardListening(torch::nn::Module& module, Listener listener) : listener_(std::move(listener)) {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const auto& submodule : module.modules(/*include_self=*/false)) modules_.push_back(submodule.get());
  modules_.push_back(&module);
  for (const torch::nn::Module* each : modules_) all.of_module.emplace(each, &listener_);
  ++listening_count;
}

ForwardListening::~ForwardListening() {
  Listeners& all = listeners();
  const std::lock_guard lock(all.mutex);
  for (const torch::nn::Module* each : modules_) {
    const auto [first, last] = all.of_module.equal_range(each);
    for (auto entry = first; entry != last; ++entry) {
      if (entry->second != &listener_) continue;
      all.of_module.erase(entry);
      break;
    }
  }
  --listening_count;
}

void await_parameters(const torch::nn::Module& module) {
  if (listening_count.load(std::memory_order_acquire) == 0) return;
  std::vector<const ForwardListening::Listener*> told;
  {
    Listeners& all = listeners();
    const std::lock_guard lock(all.mutex);
    const auto [first, last] = all.of_module.equal_range(&module);
    for (auto entry = first; entry != last; ++entry) told.push_back(entry->second);
  }
  for (const auto* listener : told) (*listener)(module);
}

AwaitingModules::AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
    : root_(module), owners_of_(parameters.size()), is_awaited_(parameters.size(), false) {
  for (size_t i = 0; i < parameters.size(); ++i) index_of_.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  owners_[&module].name = "the module itself";
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) owners_[item.value().get()].name = item.key();
}

bool AwaitingModules::note(const torch::nn::Module& module, int64_t moment) {
  const auto known = owners_.find(&module);
  if (known == owners_.end()) return false;
  if (!has_learned_) known->second.was_seen = true;
  if (std::exchange(known->second.has_awaited, true)) return false;
  known->second.awaited_at = moment;
  return true;
}

void AwaitingModules::learn() {
  has_learned_ = true;
  is_awaited_.assign(is_awaited_.size(), true);
  learn(root_, nullptr);
  for (size_t i = 0; i < is_awaited_.size(); ++i) is_awaited_[i] = is_awaited_[i] && !owners_of_[i].empty();
}

// innermost: the innermost of the modules around this one that were seen awaiting.
void AwaitingModules::learn(const torch::nn::Module& module, Owner* innermost) {
  if (const auto own = owners_.find(&module); own != owners_.end() && own->second.was_seen) innermost = &own->second;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto known = index_of_.find(item.value().unsafeGetTensorImpl());
    if (known == index_of_.end()) continue;
    const size_t parameter = known->second;
    if (innermost == nullptr) {
      is_awaited_[parameter] = false;
    } else if (std::ranges::find(innermost->parameters, parameter) == innermost->parameters.end()) {
      innermost->parameters.push_back(parameter);
      owners_of_[parameter].push_back(innermost);
    }
  }
  for (const auto& child : module.children()) learn(*child, innermost);
}

int64_t AwaitingModules::first_use(size_t parameter) const {
  if (!is_awaited_[parameter]) return 0;
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t first = kNever;
  int64_t any = 0;  // for when no owner has awaited this time
  for (const Owner* owner : owners_of_[parameter]) {
    if (owner->has_awaited) first = std::min(first, owner->awaited_at);
    any = std::max(any, owner->awaited_at);
  }
  return first == kNever ? any : first;
}

const std::vector<size_t>& AwaitingModules::parameters_of(const torch::nn::Module& module) const {
  static const std::vector<size_t> kNone;
  const auto known = owners_.find(&module);
  return known == owners_.end() ? kNone : known->second.parameters;
}

std::vector<size_t> AwaitingModules::indices_in(const torch::nn::Module& module) const {
  std::vector<size_t> indices;
  for (const at::Tensor& parameter : module.parameters()) {
    const auto known = index_of_.find(parameter.unsafeGetTensorImpl());
    if (known != index_of_.end()) indices.push_back(known->second);
  }
  return indices;
}

void AwaitingModules::begin_forward() {
  for (auto& [module, owner] : owners_) owner.has_awaited = false;
}

void AwaitingModules::check_awaited(size_t parameter, const std::string& name) const {
  const auto& owners = owners_of_[parameter];
  const auto idle = std::ranges::find_if(owners, [](const Owner* owner) { return !owner->has_awaited; });
  if (idle == owners.end()) return;
  throw RuntimeError(
      fmt::format("DataParallel: {} was used before its last update arrived: {} did not call await_parameters() in this forward; expected "
                  "that call on every path, as in the first forward",
                  name, (*idle)->name));
}

}  // namespace firkin
