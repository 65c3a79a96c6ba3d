// What the handles of one group share besides its backend: the way to its store after a failure, whether the group is
// lost, and the message about that.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "backends.h"
#include "firkin/comm/process_group.h"
#include "group_store.h"

namespace firkin {

enum class StoreHost {
  kThisRank,
  kRank0,
  kElsewhere,  // a launcher, or threads of one process
};

// Thread-safe.
class GroupState {
 public:
  // address: of the meeting point.
  GroupState(c10::intrusive_ptr<c10d::Store> group_store, std::string name, StoreHost host, std::string meeting_address,
             GroupOptions group_options, DeviceBackend backend)
      : store(std::move(group_store)),
        store_name(std::move(name)),
        store_host(host),
        address(std::move(meeting_address)),
        options(std::move(group_options)),
        device_backend(backend) {}

  bool lost() const { return lost_; }

  // The message of the failure that lost the group.
  std::string loss() const {
    const std::lock_guard lock(mutex_);
    return loss_;
  }

  // Keeps the first message.
  void lose(const std::string& message) {
    const std::lock_guard lock(mutex_);
    if (lost_) return;
    loss_ = message;
    lost_ = true;
  }

  // See firkin::note_step().
  void note_step(int64_t wrapper, int64_t step, const void* caller) {
    const std::lock_guard lock(mutex_);
    const auto is_another = [](auto& first, const auto& now) {
      if (!first) first = now;
      return *first != now;
    };
    several_steppers_ |= caller != nullptr ? is_another(caller_, caller) : is_another(stepper_, std::this_thread::get_id());
    begun_[wrapper] = step;
  }

  // The last step of each wrapper. None if several threads step: one may begin what another waits for.
  std::optional<std::map<int64_t, int64_t>> steps_begun() const {
    const std::lock_guard lock(mutex_);
    return several_steppers_ ? std::nullopt : std::optional(begun_);
  }

  // See firkin::processes_nearby(); asks the store once. Empty if it does not answer.
  std::map<int, std::string> processes_nearby(int size) {
    constexpr std::chrono::milliseconds kAnswer{2000};
    const std::lock_guard lock(nearby_mutex_);
    if (!nearby_) nearby_ = store.ask(kAnswer, [size](c10d::Store& asked) { return firkin::processes_nearby(asked, size); });
    return nearby_.value_or(std::map<int, std::string>{});
  }

  // The number of a new set of connections: see Connections::number().
  int64_t take_number() { return taken_++; }

  BoundedStore store;
  const std::string store_name;  // "the store at 127.0.0.1:29500"
  const StoreHost store_host;
  const std::string address;
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
  std::optional<std::map<int, std::string>> nearby_;
  std::atomic<bool> lost_ = false;
  std::atomic<int64_t> taken_ = 0;
};

// An error text of LibTorch or Gloo, as one line of ours quotes it: the first line, without the place in the other
// project's sources before it, the advice after it, and a full stop at its end: "[.../pair.cc:547] Connection closed by
// peer [127.0.0.1]:1234" -> "Connection closed by peer [127.0.0.1]:1234".
std::string shorten_backend_text(std::string_view text);

// Throws GroupError with the first loss's message when the group is lost.
void throw_if_lost(const ProcessGroup& group);

// What a rank that waits looks for in the group's store: whether another has given up, and whether two ranks wait for
// each other in different wrapped modules, which neither would notice before its timeout.
//
// Keys, below the group's prefix, beside those of group_store.h:
//   at/R     where rank R waits, once it has waited for long, and which steps it has begun
//   crossed  what the rank that found crossed waits said of them

// The value of at/R.
struct WaitNote {
  WaitPlace place;
  std::map<int64_t, int64_t> begun;  // wrapper -> its last step that this rank has begun
};

std::string to_text(const WaitNote& note);
std::optional<WaitNote> parse_wait_note(const std::string& text);  // none if the text is no note

// Whether neither wait can end: each rank waits in a step that the other has not begun. A note stays true while that
// holds, even if it is old: the other's wait cannot have ended without a step of this rank.
bool are_crossed(const WaitNote& one, const WaitNote& other);

}  // namespace firkin
