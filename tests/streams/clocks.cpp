#include "clocks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace firkin::streams {
namespace {

struct Current {
  StreamKey stream = 0;
  std::string operation;
};
thread_local Current current;

}  // namespace

Clocks& Clocks::all() {
  static auto* clocks = new Clocks;  // tensors may outlive what is static
  return *clocks;
}

void Clocks::begin(StreamKey stream, const std::string& operation) {
  const std::lock_guard lock(mutex_);
  ++clocks_[stream][stream];
  current = {.stream = stream, .operation = operation};
}

void Clocks::touch(const void* first, int64_t bytes, bool writes, bool lasts) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  Access access{.first = reinterpret_cast<uintptr_t>(first),
                .end = reinterpret_cast<uintptr_t>(first) + static_cast<uintptr_t>(bytes),
                .stream = current.stream,
                .time = clocks_[current.stream][current.stream],
                .writes = writes,
                .operation = current.operation};
  for (const Access& earlier : accesses_) {
    const bool overlaps = earlier.first < access.end && access.first < earlier.end;
    if (!overlaps || (!writes && !earlier.writes) || is_before(earlier, access.stream)) continue;
    races_.push_back(fmt::format("{} on stream {:#x} {} what {} on stream {:#x} {}, and no event orders them", access.operation,
                                 access.stream, writes ? "writes" : "reads", earlier.operation, earlier.stream,
                                 earlier.writes ? "wrote" : "read"));
  }
  if (!lasts) return;
  std::erase_if(accesses_, [&](const Access& earlier) {  // what this one stands for from now on
    const bool is_within = access.first <= earlier.first && earlier.end <= access.end;
    return is_within && is_before(earlier, access.stream) && (writes || (!earlier.writes && earlier.stream == access.stream));
  });
  accesses_.push_back(std::move(access));
}

Clock Clocks::now(StreamKey stream) {
  const std::lock_guard lock(mutex_);
  return clocks_[stream];
}

void Clocks::learn(StreamKey stream, const Clock& clock) {
  const std::lock_guard lock(mutex_);
  for (const auto& [other, time] : clock) clocks_[stream][other] = std::max(clocks_[stream][other], time);
}

int64_t Clocks::done_ns(StreamKey stream) {
  const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  const std::lock_guard lock(mutex_);
  return std::max(done_ns_[stream], now);
}

void Clocks::not_done_before(StreamKey stream, int64_t ns) {
  const std::lock_guard lock(mutex_);
  done_ns_[stream] = std::max(done_ns_[stream], ns);
}

void Clocks::forget_times() {
  const std::lock_guard lock(mutex_);
  done_ns_.clear();
}

void Clocks::freed(const void* first, int64_t bytes, StreamKey stream, bool was_recorded) {
  const std::lock_guard lock(mutex_);
  const auto begin = reinterpret_cast<uintptr_t>(first);
  const uintptr_t end = begin + static_cast<uintptr_t>(bytes);
  std::erase_if(accesses_, [&](const Access& access) {
    if (access.end <= begin || end <= access.first) return false;
    if (!was_recorded && !is_before(access, stream)) {
      races_.push_back(fmt::format("{} bytes of stream {:#x} are free while {} on stream {:#x} may be using them", bytes, stream,
                                   access.operation, access.stream));
    }
    return true;
  });
}

void Clocks::host_waits(const std::string& why) {
  const std::lock_guard lock(mutex_);
  host_waits_.push_back(why);
}

std::vector<std::string> Clocks::take_races() {
  const std::lock_guard lock(mutex_);
  return std::exchange(races_, {});
}

std::vector<std::string> Clocks::take_host_waits() {
  const std::lock_guard lock(mutex_);
  return std::exchange(host_waits_, {});
}

}  // namespace firkin::streams
