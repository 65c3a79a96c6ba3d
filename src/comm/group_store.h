// The store where ranks meet: calls to it that may never return, and which ranks are missing when something failed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

using Clock = std::chrono::steady_clock;

// Runs `call` on a thread of its own and returns its result-to-be. Nobody waits for the thread: a call that never
// returns leaks it, so `call` must own everything that it uses.
template <typename Call>
std::future<std::invoke_result_t<Call&>> start_detached(Call call) {
  std::packaged_task<std::invoke_result_t<Call&>()> task(std::move(call));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

// The result of `call`, or nothing if it takes longer than `limit`; it then goes on by itself, see start_detached().
// Throws what `call` throws.
template <typename Call>
std::optional<std::invoke_result_t<Call&>> call_within(std::chrono::milliseconds limit, Call call) {
  auto result = start_detached(std::move(call));
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

// A store that is asked with a deadline: the rank that hosts it may be the one that has died or is stopped.
//
//   BoundedStore store(group.store);
//   std::optional<bool> failed = store.ask(kPatience, [](c10d::Store& s) { return s.check({"failed/any"}); });
//
// Thread-safe. Once the store has not answered in time, or its connection is broken, it is not asked again: a call that
// hangs in it holds its lock.
class BoundedStore {
 public:
  explicit BoundedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // What question(store) returns, or nothing if the store does not answer. `question` runs on another thread and must
  // own what it uses.
  template <typename Question>
  std::optional<std::invoke_result_t<Question&, c10d::Store&>> ask(std::chrono::milliseconds limit, Question question) {
    if (!answers_) return std::nullopt;
    try {
      auto answer = call_within(limit, [store = store_, question = std::move(question)]() mutable { return question(*store); });
      if (!answer) answers_ = false;
      return answer;
    } catch (const std::exception&) {
      answers_ = false;
      return std::nullopt;
    }
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  std::atomic<bool> answers_ = true;
};

struct NamedRank {
  int rank = 0;
  std::string host = {};  // empty: the rank never arrived
};

// "the store at 127.0.0.1:29500"; "the store" for one that is not on the network.
std::string store_name(const c10::intrusive_ptr<c10d::Store>& store);

// The store's host; 127.0.0.1 for one that is not on the network.
std::string store_address(const c10::intrusive_ptr<c10d::Store>& store);

// Which ranks are missing when a collective or a rendezvous has failed: every rank that fails leaves a mark in the
// group's store, and looks for ranks that have left none.
//
// Keys, below the group's prefix:
//   host/R      the host of rank R, from its arrival on
//   process/R   its process, in a form by which ranks of the same machine can tell whether it still runs
//   failed/R    where rank R was when it failed: "an all-reduce"
//   failed/any  a rank has failed
//   failed/cause  the rank that gave up before any other failed

std::string host_name();

// Sets host/R and process/R. Throws c10::Error.
void announce_rank(c10d::Store& store, int rank);

struct LocalProcess {
  std::string number;
  std::string started;  // in the kernel's ticks
};

// The processes of other ranks that run on this machine, by rank. Throws c10::Error.
std::map<int, LocalProcess> processes_nearby(c10d::Store& store, int size);

// Unlike a broken connection this does not depend on what the process's children hold open.
bool has_ended(const LocalProcess& process);

inline constexpr std::chrono::milliseconds kSurveyGrace{800};

// Sets failed/R and failed/any. Throws c10::Error.
void set_mark(c10d::Store& store, int rank, const std::string& where);

// The same, if the store answers within kSurveyGrace.
void leave_mark(BoundedStore& store, int rank, const std::string& where);

struct FailedRank {
  NamedRank who;
  std::string where;  // its mark
};

struct Survey {
  std::vector<NamedRank> missing;   // ranks without a mark, ascending
  std::optional<FailedRank> other;  // the first other rank whose mark differs from this rank's, else any with a mark
};

struct SurveyOptions {
  int rank = 0;
  int size = 1;
  std::string where;                 // this rank's mark
  std::chrono::milliseconds window;  // how long the other ranks have to leave theirs
};

// Leaves this rank's mark and looks for the others' until all are there or the window has passed. Returns nothing when
// the store does not answer; in any case within the window and kSurveyGrace.
std::optional<Survey> survey_ranks(BoundedStore& store, const SurveyOptions& options);

// Whether a rank has left a mark. Throws c10::Error.
bool someone_failed(c10d::Store& store);

// "failed/3"
std::string key_of(const char* kind, int rank);

// The key's value, or an empty text: get() alone would wait for the key. Throws c10::Error.
std::string value_of(c10d::Store& store, const std::string& key);

// The ranks below `size` that have no key of this kind, ascending, the first few with their hosts. Throws c10::Error.
std::vector<NamedRank> ranks_without(const char* kind, c10d::Store& store, int size);

// "rank 1 (gpu07)", "ranks 1 (gpu07), 3 (gpu08)"; many ranks are cut short. At least one rank.
std::string name_ranks(const std::vector<NamedRank>& ranks);

}  // namespace firkin
