// Ranks as threads of one test process, with a real Gloo group over loopback between them.
#pragma once

#include <exception>
#include <future>
#include <latch>
#include <mutex>

#include "../torch.h"
#include "firkin/comm/process_group.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace firkin {

// Beside the next test: to close a connection, Gloo waits until its event loop has ticked, up to 10 ms, and closes one after another.
inline void let_go(ProcessGroup group) {
  static std::mutex mutex;
  static std::vector<std::future<void>> going;  // all are gone when the program ends
  const std::lock_guard lock(mutex);
  going.push_back(std::async(std::launch::async, [group = std::move(group)]() mutable { group = {}; }));
}

// Runs `body` once per rank, each on a thread of its own, and rethrows the first rank's exception, if any, when all have ended.
inline void run_ranks_with(int size, const GroupOptions& options, const std::function<void(const ProcessGroup&)>& body) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::latch formed(size);  // whoever left at once would break connections that another is still making
  const auto form = [&](int rank) {
    try {
      return make_process_group(store, rank, size, options);
    } catch (...) {
      formed.count_down();
      throw;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        ProcessGroup group = form(rank);
        formed.arrive_and_wait();
        body(group);
        let_go(std::move(group));
      } catch (...) {
        errors[static_cast<size_t>(rank)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

inline constexpr std::chrono::milliseconds kTestPollEvery{250};  // GroupOptions::poll_every: threads hear of each other's end sooner
inline constexpr std::chrono::seconds kTestTimeout{60};          // of collectives; who waits for it has been told nothing

inline void run_ranks(int size, const std::function<void(const ProcessGroup&)>& body) {
  run_ranks_with(size, {.timeout = kTestTimeout, .poll_every = kTestPollEvery}, body);
}

// Over a modelled link (modelled_link.h); empty: over none.
inline void run_linked_ranks(int size, const std::string& link, const std::function<void(const ProcessGroup&)>& body) {
  if (link.empty()) return run_ranks(size, body);
  run_ranks_with(size, {.timeout = kTestTimeout, .poll_every = kTestPollEvery, .link = parse_link(link, size)}, body);
}

// What `body` returns on each rank.
template <typename Body>
auto results_of(int size, const Body& body, const std::string& link = "") {
  std::vector<std::invoke_result_t<Body, const ProcessGroup&>> results(static_cast<size_t>(size));
  run_linked_ranks(size, link, [&](const ProcessGroup& group) { results[static_cast<size_t>(group.rank)] = body(group); });
  return results;
}

inline std::string loss_of(const std::function<void()>& body) {
  return message_of<GroupError>(body);
}

// The loss that each rank hears of in `body`. All keep their group until every one has done its part.
inline std::vector<std::string> losses_of(int size, const std::function<void(const ProcessGroup&)>& body) {
  std::latch done(size);
  return results_of(size, [&](const ProcessGroup& group) {
    const std::string loss = loss_of([&] { body(group); });
    done.arrive_and_wait();
    return loss;
  });
}

// That a collective works.
inline void expect_sum(const ProcessGroup& group) {
  at::Tensor values = at::ones({3});
  all_reduce(group, values);
  EXPECT_TRUE(at::equal(values, at::full({3}, group.size)));
}

}  // namespace firkin
