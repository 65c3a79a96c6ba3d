#include "connections.h"

#include <fmt/format.h>

#include <thread>
#include <utility>

namespace firkin {

std::vector<bool> ConnectionPool::free_sets() const {
  const std::lock_guard lock(mutex_);
  std::vector<bool> result;
  for (const Place& place : places_) result.push_back(place.is_free);
  return result;
}

int64_t ConnectionPool::add() {
  const std::lock_guard lock(mutex_);
  places_.emplace_back();
  return static_cast<int64_t>(places_.size()) - 1;
}

void ConnectionPool::connected(int64_t index, Set set) {
  const std::lock_guard lock(mutex_);
  places_.at(static_cast<size_t>(index)).set = std::move(set);
}

ConnectionPool::Set ConnectionPool::take(int64_t index) {
  const std::lock_guard lock(mutex_);
  Place& place = places_.at(static_cast<size_t>(index));
  place.is_free = false;
  return place.set;
}

void ConnectionPool::give_back(int64_t index) {
  const std::lock_guard lock(mutex_);
  places_.at(static_cast<size_t>(index)).is_free = true;
}

void ConnectionPool::abandon(int64_t index) {
  const std::lock_guard lock(mutex_);
  // Not closed: another rank may not have ended yet what it has under way there.
  dynamic_cast<LosableGroup&>(*places_.at(static_cast<size_t>(index)).set).leave();
}

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
  setBoundDeviceId(other.getBoundDeviceId());  // setBackend() tells it to the backends
  setBackend(c10::kCPU, BackendType::GLOO, gloo);
  setDefaultBackend(BackendType::GLOO);
  for (const c10::Device& device : other.getDeviceTypes()) {
    if (device.is_cpu()) continue;
    auto backend = other.getBackend(device.type());
    const std::string name = backend->getBackendName();
    if (name == "gloo") {
      setBackend(device.type(), BackendType::GLOO, gloo);
    } else {
      setBackend(device.type(), name == "nccl" ? BackendType::NCCL : BackendType::CUSTOM, std::move(backend));
    }
  }
}

// NCCL's own threads want to be told that the group ends, and not only that it is gone.
void LosableGroup::shut_nccl_down() {
  if (!owns_nccl || state_->lost()) return;
  try {
    getBackend(c10::kCUDA)->shutdown();
  } catch (...) {  // the communicators are beyond help
  }
}

void LosableGroup::leave_backends() {
  if (!state_->lost() && !left_) return;
  if (or_rounds_) or_rounds_->leave();
  try {
    const bool aborts_nccl = owns_nccl && state_->lost();
    std::thread([by_device = std::move(deviceTypeToBackend_), by_type = std::move(backendTypeToBackend_), aborts_nccl] {
      try {
        if (aborts_nccl) by_device.at(c10::kCUDA)->abort();
      } catch (...) {
      }
    }).detach();
  } catch (...) {
    // No thread to be had: the destructor waits here.
  }
}

namespace {

// The lowest index of a set that no rank uses. Collective.
std::optional<int64_t> first_free(const ProcessGroup& group, const std::vector<bool>& free_here) {
  if (free_here.empty()) return std::nullopt;
  const auto ranks = all_gather(group, {free_here.begin(), free_here.end()});
  for (size_t i = 0; i < free_here.size(); ++i) {
    if (std::ranges::all_of(ranks, [i](const std::vector<double>& rank) { return rank[i] != 0; })) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

}  // namespace

ProcessGroup companion(const ProcessGroup& group, int64_t index) {
  throw_if_lost(group);
  auto& parent = dynamic_cast<LosableGroup&>(*group.c10d);
  auto& set = parent.companions[index];
  if (!set) set = connect_again(group, fmt::format("companion/{}", index));
  ProcessGroup result = group;
  result.c10d = set;
  return result;
}

Connections take_connections(const ProcessGroup& group) {
  throw_if_lost(group);
  const auto pool = dynamic_cast<LosableGroup&>(*group.c10d).pool;
  const int64_t number = group.state->take_number();
  std::optional<int64_t> index = first_free(group, pool->free_sets());
  if (!index) {
    index = pool->add();
    pool->connected(*index, connect_again(group, fmt::format("connections/{}", *index)));
  }
  Connections result;
  result.group_ = group;
  result.group_.c10d = pool->take(*index);
  result.parent_ = group.c10d;
  result.pool_ = pool;
  result.index_ = *index;
  result.number_ = number;
  return result;
}

Connections::Connections(Connections&& other) noexcept = default;

Connections& Connections::operator=(Connections&& other) noexcept {
  if (this == &other) return *this;
  end();
  group_ = std::move(other.group_);
  parent_ = std::move(other.parent_);
  pool_ = std::move(other.pool_);
  index_ = other.index_;
  number_ = other.number_;
  return *this;
}

Connections::~Connections() {
  end();
}

void Connections::abandon() {
  if (pool_) std::exchange(pool_, nullptr)->abandon(index_);
}

// The parent goes last: this may be the last handle of all.
void Connections::end() {
  if (pool_) std::exchange(pool_, nullptr)->give_back(index_);
  group_.c10d = nullptr;
  parent_ = nullptr;
}

}  // namespace firkin
