// Deadlines for calls that may never return, above all those of a store.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

using Clock = std::chrono::steady_clock;

// Runs `call` on a thread of its own and returns the future of its result. Nobody waits for the thread, and a call that
// never returns leaks it. So `call` must own everything that it uses.
template <typename Call>
std::future<std::invoke_result_t<Call&>> start_detached(Call call) {
  std::packaged_task<std::invoke_result_t<Call&>()> task(std::move(call));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

// The result of `call`, or nothing if it takes longer than `limit`. It then goes on by itself: see start_detached().
// Throws what `call` throws.
template <typename Call>
std::optional<std::invoke_result_t<Call&>> call_within(std::chrono::milliseconds limit, Call call) {
  auto result = start_detached(std::move(call));
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

// A store whose every answer has a deadline: the rank that hosts the store may have died, or be stopped.
//
//   BoundedStore store(group.store);
//   std::optional<bool> failed = store.ask(kPatience, [](c10d::Store& s) { return s.check({"failed/any"}); });
//
// Once the store has not answered in time, or its connection is broken, it is not asked again: a call that hangs in it
// holds its lock. Thread-safe.
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

}  // namespace firkin
