// A store that is asked with a deadline: the rank that hosts it may be the one that has died or is stopped.
//
//   BoundedStore store(group.store);
//   std::optional<bool> failed = store.ask(kPatience, [](c10d::Store& s) { return s.check({"failed/any"}); });
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "bounded_call.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace firkin {

// Thread-safe. Once the store has not answered in time, or its connection is broken, it is not asked again: a call that hangs in it
// holds its lock.
class BoundedStore {
 public:
  explicit BoundedStore(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}

  // What question(store) returns, or nothing when the store does not answer. `question` runs on another thread and must own what it uses.
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
