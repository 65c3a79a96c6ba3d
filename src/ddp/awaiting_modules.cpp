#include "awaiting_modules.h"

#include <ATen/MemoryOverlap.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <limits>
#include <mutex>
#include <utility>

#include "firkin/base/error.h"
#include "firkin/ddp/await_parameters.h"

namespace firkin {
namespace {

// All AwaitingModules that live: each await_parameters() calls those that have the module.
struct Listeners {
  std::mutex mutex;
  std::vector<const AwaitingModules*> all;
  std::atomic<bool> any = false;
};

Listeners& listeners() {
  static Listeners* const kListeners = new Listeners;  // never destroyed: modules may outlive static objects
  return *kListeners;
}

}  // namespace

void await_parameters(const torch::nn::Module& module) {
  Listeners& listening = listeners();
  if (!listening.any) return;
  std::vector<const AwaitingModules*> concerned;
  {
    const std::lock_guard lock(listening.mutex);
    std::ranges::copy_if(listening.all, std::back_inserter(concerned), [&](const auto* each) { return each->owners_.contains(&module); });
  }
  for (const AwaitingModules* each : concerned) each->on_await_(module);
}

std::string why_not_awaited(std::vector<NamedTensor> parameters) {
  std::ranges::sort(parameters, {}, [](const NamedTensor& p) { return p.tensor.const_data_ptr(); });
  for (size_t i = 1; i < parameters.size(); ++i) {
    const NamedTensor &one = parameters[i - 1], &other = parameters[i];
    const at::MemOverlapStatus overlap = at::get_overlap_status(one.tensor, other.tensor);
    if (overlap != at::MemOverlapStatus::Full && overlap != at::MemOverlapStatus::Partial) continue;
    return fmt::format("{} and {} share memory, and the strategies ordered and sharded step each by itself; expected one parameter",
                       one.name, other.name);
  }
  return "";
}

AwaitingModules::AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters, OnAwait on_await)
    : root_(module), on_await_(std::move(on_await)), owners_of_(parameters.size()), is_awaited_(parameters.size(), false) {
  for (size_t i = 0; i < parameters.size(); ++i) index_of_.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  owners_[&module].name = "the module itself";
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) owners_[item.value().get()].name = item.key();
  const std::lock_guard lock(listeners().mutex);
  listeners().all.push_back(this);
  listeners().any = true;
}

AwaitingModules::~AwaitingModules() {
  const std::lock_guard lock(listeners().mutex);
  std::erase(listeners().all, this);
  listeners().any = !listeners().all.empty();
}

bool AwaitingModules::record_await(const torch::nn::Module& module, int64_t moment) {
  const auto known = owners_.find(&module);
  if (known == owners_.end()) return false;
  if (!has_learned_) known->second.awaits = true;
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

// innermost: of the modules around this one that await, the innermost; null if none does.
void AwaitingModules::learn(const torch::nn::Module& module, Owner* innermost) {
  if (const auto own = owners_.find(&module); own != owners_.end() && own->second.awaits) innermost = &own->second;
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
  received_.clear();
}

void AwaitingModules::check_awaited(size_t parameter, const std::string& name) const {
  if (received_.contains(parameter)) return;
  const auto& owners = owners_of_[parameter];
  const auto idle = std::ranges::find_if(owners, [](const Owner* owner) { return !owner->has_awaited; });
  if (idle == owners.end()) return;
  throw RuntimeError(
      fmt::format("DataParallel: {} was used before its last update arrived: {} did not call await_parameters() in this forward; expected "
                  "that call on every path, as in the first forward",
                  name, (*idle)->name));
}

}  // namespace firkin
