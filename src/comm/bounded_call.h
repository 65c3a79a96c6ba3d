// Calls that may never return, with a deadline.
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

namespace firkin {

// Runs `call` on a thread of its own and returns its result-to-be. Nobody waits for the thread: a call that never returns leaks it, so
// `call` must own everything that it uses.
template <typename Call>
std::future<std::invoke_result_t<Call&>> start_detached(Call call) {
  std::packaged_task<std::invoke_result_t<Call&>()> task(std::move(call));
  auto result = task.get_future();
  std::thread(std::move(task)).detach();
  return result;
}

// The result of `call`, or nothing when it takes longer than `limit`; then it goes on by itself, see start_detached().
// Throws what `call` throws.
template <typename Call>
std::optional<std::invoke_result_t<Call&>> call_within(std::chrono::milliseconds limit, Call call) {
  auto result = start_detached(std::move(call));
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace firkin
