// What the handles of a group share besides its backend: its store, its failure once it is lost, and further sets of
// connections.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "backends.h"
#include "bounded_store.h"
#include "firkin/comm/process_group.h"
#include "group_store.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace firkin {

enum class StoreHost {
  kThisRank,
  kRank0,
  kElsewhere,  // a launcher, or threads of one process
};

// Thread-safe.
class GroupState {
 public:
  GroupState(c10::intrusive_ptr<c10d::Store> group_store, StoreHost host, GroupOptions group_options, DeviceBackend backend)
      : store(std::move(group_store)), store_host(host), options(std::move(group_options)), device_backend(backend) {}

  bool is_lost() const { return lost_; }

  // The message of the failure that lost the group.
  std::string loss() const {
    const std::lock_guard lock(mutex_);
    return loss_;
  }

  // Loses the group. Keeps the first call's message.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
    loss_ = message;
    lost_ = true;
  }

  // See firkin::record_step().
  void record_step(int64_t wrapper, int64_t step, const void* caller) {
    const std::lock_guard lock(mutex_);
    const auto is_another = [](auto& first, const auto& now) {
      if (!first) first = now;
      return *first != now;
    };
    several_steppers_ |= caller != nullptr ? is_another(caller_, caller) : is_another(stepper_, std::this_thread::get_id());
    begun_[wrapper] = step;
  }

  // By wrapper, the last step that this rank has begun. None if several threads record steps: one of them may begin
  // what another waits for.
  std::optional<std::map<int64_t, int64_t>> steps_begun() const {
    const std::lock_guard lock(mutex_);
    return several_steppers_ ? std::nullopt : std::optional(begun_);
  }

  // The ranks of this machine whose processes have ended; none if the store does not answer. Only the first call asks
  // it.
  std::set<int> ended_nearby(int size) {
    constexpr std::chrono::milliseconds kAnswer{2000};
    const std::lock_guard lock(nearby_mutex_);
    if (!nearby_) nearby_ = store.ask(kAnswer, [size](c10d::Store& asked) { return processes_nearby(asked, size); });
    std::set<int> ended;
    for (const auto& [rank, process] : nearby_.value_or(std::map<int, LocalProcess>{})) {
      if (has_ended(process)) ended.insert(rank);
    }
    return ended;
  }

  // The number of a new set of connections: see Connections::number().
  int64_t take_number() { return taken_++; }

  BoundedStore store;
  const StoreHost store_host;
  const GroupOptions options;
  const DeviceBackend device_backend;  // never kBest

 private:
  mutable std::mutex mutex_;
  std::string loss_;
  std::map<int64_t, int64_t> begun_;
  std::optional<std::thread::id> stepper_;
  std::optional<const void*> caller_;
  bool several_steppers_ = false;
  std::mutex nearby_mutex_;
  std::optional<std::map<int, LocalProcess>> nearby_;
  std::atomic<bool> lost_ = false;
  std::atomic<int64_t> taken_ = 0;
};

// Shortens an error text of LibTorch or Gloo for a line of ours: to its first line, without the source file before it,
// the advice after it, and a full stop. "[.../pair.cc:547] Connection closed by peer [127.0.0.1]:1234" -> "Connection
// closed by peer [127.0.0.1]:1234".
std::string shorten_backend_text(const std::string& text);

// If the group is lost, throws GroupError with the first loss's message.
void throw_if_lost(const ProcessGroup& group);

// Note [Crossed waits]
// If two ranks step two wrapped modules in different orders, each waits for the other in another module, and only their
// timeouts would end that. The same happens with two collectives that the program calls between steps. So each rank
// records the steps that it begins (record_step()), and a rank that has waited for long writes into the group's store
// where it waits and which steps it has begun. Other waiting ranks read this at their polls. Two waits are crossed if
// each is in a step that the other rank has not begun: neither can end, because a rank that waits begins no step. This
// stays true even if what a rank has written is old, since its wait cannot end without a step of the other. The rank
// that finds crossed waits leaves the message in the store, and every rank throws it.
//
// Keys, below the group's prefix, beside those of group_store.h and survey.h:
//   at/R     where rank R waits, once it has waited for long, and which steps it has begun
//   crossed  the message of the rank that has found crossed waits

// The value of at/R.
struct WaitNote {
  WaitPlace place;
  std::map<int64_t, int64_t> begun;  // wrapper -> its last step that this rank has begun
};

std::string to_text(const WaitNote& note);
std::optional<WaitNote> parse_wait_note(const std::string& text);  // none if the text is not one of to_text()

// Whether neither wait can end. See Note [Crossed waits].
bool are_crossed(const WaitNote& one, const WaitNote& other);

// ---- Further sets of connections.

inline constexpr const char* kAgreementCollective = "gloo:or";  // how a trace names start_or()

// start_or() over one set of connections: the bitwise OR of every rank's bytes, in ceil(log2 W) hops.
//
// Dissemination (Hensgen, Finkel, Manber 1988): in round k every rank sends what it has so far to rank + 2^k, and
// combines it with what rank - 2^k sends. With OR it does no harm to combine a rank's bytes twice, so this works for
// any number of ranks. Each rank sends ceil(log2 W) messages of all bytes, one after another; Gloo's all-reduce in
// PyTorch 2.13 is a ring of 2(W-1) messages of bytes / W.
//
// The first call starts a thread, on which the rounds run: some thread has to wait for long, because a wait with a
// short timeout would close Gloo's connections. One thread at a time may use this.
class OrRounds {
 public:
  OrRounds(c10::intrusive_ptr<c10d::Backend> backend, std::optional<ModelledLink> link);
  // Waits for no other rank: what is in flight fails.
  ~OrRounds();
  OrRounds(const OrRounds&) = delete;
  OrRounds& operator=(const OrRounds&) = delete;

  Work start(const at::Tensor& bytes, std::chrono::milliseconds timeout);
  // Makes the thread end, and does not wait for it.
  void leave();

 private:
  class Rounds;
  std::shared_ptr<Rounds> rounds_;
  std::thread thread_;
};

// A c10d group whose destructor does not wait once the group is lost. The destructor of Gloo's backend waits for
// collectives in flight, which in a lost group only end by their timeouts. So a group that is lost, or that leave() was
// called for, has another thread destroy its backends.
class LosableGroup final : public c10d::ProcessGroup {
 public:
  LosableGroup(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::shared_ptr<const GroupState> state);
  ~LosableGroup() override;

  void release_resources() override;

  // `gloo` carries tensors on the CPU, and on the devices whose tensors `other` carries over Gloo. For other devices,
  // takes the backend of `other`, unless this group has one already.
  void set_backends(const c10::intrusive_ptr<c10d::Backend>& gloo, c10d::ProcessGroup& other);
  // From now on the destructor waits for nothing, whether or not the group is lost.
  void leave() { is_left_ = true; }
  bool is_left() const { return is_left_; }

  // Created by the first call.
  OrRounds& or_rounds();

  bool owns_nccl = false;  // whether its NCCL backend is not another group's
  // The same ranks over other connections, for take_connections(); null for a set that could not be connected.
  std::vector<c10::intrusive_ptr<LosableGroup>> sets;
  std::atomic<bool> is_free = false;  // if this is such a set: nobody has it, and it was not abandoned

 private:
  void shut_nccl_down();
  void leave_backends();

  std::shared_ptr<const GroupState> state_;
  std::atomic<bool> is_left_ = false;
  std::unique_ptr<OrRounds> or_rounds_;
};

// The same ranks over connections of their own, in a part of the group's store. Collective. Throws RuntimeError as
// connect() does.
c10::intrusive_ptr<LosableGroup> connect_again(const ProcessGroup& group, const std::string& part);

}  // namespace firkin
