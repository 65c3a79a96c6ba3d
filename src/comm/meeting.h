// How ranks meet, for a new group and for connections of its own: the store is asked with a deadline, and a failure names the rank.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "backends.h"
#include "firkin/base/error.h"
#include "firkin/base/units.h"
#include "firkin/comm/process_group.h"
#include "group_state.h"
#include "group_store.h"

namespace firkin {

// What this rank wants to be part of.
struct Meeting {
  using Clock = std::chrono::steady_clock;

  int rank = 0;
  int size = 1;
  std::string address;  // of the meeting point, for the choice of the network interface
  std::string place;    // " at 127.0.0.1:29500", or nothing
  StoreHost store_host = StoreHost::kElsewhere;
  GroupOptions options;
  c10::Device device = c10::kCPU;
  DeviceBackend wanted = DeviceBackend::kGloo;
  c10::intrusive_ptr<c10d::ProcessGroup> connected = nullptr;  // one whose connections are used
  Clock::time_point started = Clock::now();

  std::chrono::milliseconds timeout() const { return std::min(options.rendezvous_timeout, options.timeout); }
  std::chrono::milliseconds time_left(std::chrono::milliseconds grace) const {
    const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started);
    return std::max(std::chrono::milliseconds(1), timeout() + grace - passed);
  }
  std::string limit() const { return format_seconds(static_cast<double>(timeout().count()) / 1000); }
};

// The store has failed; not for being late.
class StoreError : public RuntimeError {
 public:
  using RuntimeError::RuntimeError;
};

std::string cannot_meet(const Meeting& meeting, std::string_view why);

inline constexpr std::chrono::milliseconds kStoreGrace{500};  // for an answer of the store after the timeout

// call() within the meeting's timeout. Throws StoreError when the store, of which the call makes use, fails; RuntimeError when it does not
// answer.
template <typename Call>
auto meet(const Meeting& meeting, Call call) {
  std::optional<std::invoke_result_t<Call&>> result;
  try {
    result = call_within(meeting.time_left(kStoreGrace), std::move(call));
  } catch (const std::exception& error) {
    throw StoreError(cannot_meet(meeting, shorten_backend_text(error.what())));
  }
  if (!result) throw RuntimeError(cannot_meet(meeting, fmt::format("the store there does not answer within {}", meeting.limit())));
  return std::move(*result);
}

// A Gloo for this rank, connected to those of the other ranks, over the meeting's link if it has one. Null when a rank of the roster was
// started again meanwhile. Throws RuntimeError that names the ranks that have not arrived, or have arrived and not connected.
c10::intrusive_ptr<c10d::Backend> connect_gloo(const Meeting& meeting, const c10::intrusive_ptr<c10d::Store>& group_store);

}  // namespace firkin
