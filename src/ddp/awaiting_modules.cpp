#include "awaiting_modules.h"

#include <algorithm>

namespace firkin {

AwaitingModules::AwaitingModules(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters)
    : owners_of_(parameters.size()), is_awaited_(parameters.size(), false), first_need_(parameters.size(), 0) {
  std::unordered_map<const void*, size_t> index_of;
  for (size_t i = 0; i < parameters.size(); ++i) index_of.emplace(parameters[i].tensor.unsafeGetTensorImpl(), i);
  std::vector<const torch::nn::Module*> path;
  add_places(module, "", path, index_of);
}

void AwaitingModules::add_places(const torch::nn::Module& module, const std::string& name, std::vector<const torch::nn::Module*>& path,
                                 const std::unordered_map<const void*, size_t>& index_of) {
  path.push_back(&module);
  owners_[&module].name = name.empty() ? "the module itself" : name;
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const auto known = index_of.find(item.value().unsafeGetTensorImpl());
    if (known != index_of.end()) places_.push_back({.parameter = known->second, .path = path});
  }
  for (const auto& child : module.named_children()) {
    std::string inner = name;
    if (!inner.empty()) inner += '.';
    inner += child.key();
    add_places(*child.value(), inner, path, index_of);
  }
  path.pop_back();
}

void AwaitingModules::note(const torch::nn::Module& module) {
  const auto known = owners_.find(&module);
  if (known == owners_.end()) return;
  known->second.has_awaited = true;
  if (!has_learned_ && known->second.turn < 0) known->second.turn = turns_++;
}

void AwaitingModules::learn() {
  has_learned_ = true;
  is_awaited_.assign(is_awaited_.size(), true);
  std::ranges::fill(first_need_, turns_);
  std::vector<bool> has_place(is_awaited_.size(), false);
  for (const Place& place : places_) {
    const auto owner =
        std::find_if(place.path.rbegin(), place.path.rend(), [&](const auto* module) { return owners_.at(module).turn >= 0; });
    has_place[place.parameter] = true;
    if (owner == place.path.rend()) {
      is_awaited_[place.parameter] = false;
      continue;
    }
    Owner& found = owners_.at(*owner);
    if (std::ranges::find(found.parameters, place.parameter) != found.parameters.end()) continue;
    found.parameters.push_back(place.parameter);
    owners_of_[place.parameter].push_back(&found);
    first_need_[place.parameter] = std::min(first_need_[place.parameter], found.turn);
  }
  for (size_t i = 0; i < is_awaited_.size(); ++i) {
    is_awaited_[i] = is_awaited_[i] && has_place[i];
    if (!is_awaited_[i]) first_need_[i] = turns_;
  }
}

const std::vector<size_t>& AwaitingModules::parameters_of(const torch::nn::Module& module) const {
  static const std::vector<size_t> kNone;
  const auto known = owners_.find(&module);
  return known == owners_.end() ? kNone : known->second.parameters;
}

void AwaitingModules::begin_forward() {
  for (auto& [module, owner] : owners_) owner.has_awaited = false;
}

std::string AwaitingModules::missing_await(size_t parameter) const {
  for (const Owner* owner : owners_of_[parameter]) {
    if (!owner->has_awaited) return owner->name;
  }
  return "";
}

}  // namespace firkin
