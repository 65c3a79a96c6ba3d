// Sets of connections beside a group's own: how they are taken, given back and abandoned, and what happens to them when
// the group is lost.
#include "group_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "across_ranks.h"

namespace firkin {

LosableGroup::LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state)
    : c10d::ProcessGroup(store, rank, size), state_(std::move(state)) {}

LosableGroup::~LosableGroup() {
  shut_nccl_down();
  leave_backends();
  or_rounds_ = nullptr;
}

OrRounds& LosableGroup::or_rounds() {
  if (!or_rounds_) or_rounds_ = std::make_unique<OrRounds>(getBackend(c10::kCPU), state_->options.link);
  return *or_rounds_;
}

void LosableGroup::release_resources() {
  shut_nccl_down();
  leave_backends();
  c10d::ProcessGroup::release_resources();
}

void LosableGroup::set_backends(const c10::intrusive_ptr<c10d::Backend>& gloo, c10d::ProcessGroup& other) {
  setBoundDeviceId(other.getBoundDeviceId());  // before setBackend(), which passes it on
  setBackend(c10::kCPU, BackendType::GLOO, gloo);
  setDefaultBackend(BackendType::GLOO);
  for (const c10::Device& device : other.getDeviceTypes()) {
    if (device.is_cpu() || deviceTypeToBackend_.contains(device.type())) continue;
    auto backend = other.getBackend(device.type());
    const std::string name = backend->getBackendName();
    if (name == "gloo") {
      setBackend(device.type(), BackendType::GLOO, gloo);
    } else {
      setBackend(device.type(), name == "nccl" ? BackendType::NCCL : BackendType::CUSTOM, std::move(backend));
    }
  }
}

// Shuts NCCL down before the group is destroyed, because NCCL has threads of its own.
void LosableGroup::shut_nccl_down() {
  if (!owns_nccl || state_->is_lost()) return;
  try {
    getBackend(c10::kCUDA)->shutdown();
  } catch (...) {  // the communicators are broken already
  }
}

void LosableGroup::leave_backends() {
  if (!state_->is_lost() && !is_left_) return;
  if (or_rounds_) or_rounds_->leave();
  try {
    const bool aborts_nccl = owns_nccl && state_->is_lost();
    std::thread([by_device = std::move(deviceTypeToBackend_), by_type = std::move(backendTypeToBackend_), aborts_nccl] {
      try {
        if (aborts_nccl) by_device.at(c10::kCUDA)->abort();
      } catch (...) {
      }
    }).detach();
  } catch (...) {
    // No thread could be started: the destructor waits here.
  }
}

Connections take_connections(const ProcessGroup& group) {
  throw_if_lost(group);
  auto& sets = dynamic_cast<LosableGroup&>(*group.c10d).sets;
  Connections result;
  result.number_ = group.state->take_number();
  std::vector<double> taken;
  for (const auto& set : sets) taken.push_back(set && set->is_free ? 0 : 1);
  if (!taken.empty()) taken = max_over_ranks(group, taken);
  const auto free = std::ranges::find(taken, 0);  // the first set that is free on every rank
  auto set = free == taken.end() ? nullptr : sets[static_cast<size_t>(free - taken.begin())];
  if (!set) {
    const std::string part = fmt::format("connections/{}", sets.size());
    sets.emplace_back();  // before it is connected, so that all ranks count alike if that fails on some of them
    set = sets.back() = connect_again(group, part);
  }
  set->is_free = false;
  result.group_ = group;
  result.group_.c10d = std::move(set);
  result.parent_ = group.c10d;
  return result;
}

// Destroys the parent last: this may be its last handle.
Connections::~Connections() {
  if (auto* const set = dynamic_cast<LosableGroup*>(group_.c10d.get())) set->is_free = !set->is_left();
  group_.c10d = nullptr;
}

void Connections::abandon() {
  // Does not close the connections: another rank may still have something in flight there.
  dynamic_cast<LosableGroup&>(*group_.c10d).leave();
}

}  // namespace firkin
