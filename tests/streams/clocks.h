// Vector clocks say which work on a device is in order, whatever order it happened to run in: they keep what a device would have been free
// to do. An operation gets a time of its stream, an event carries what its stream knew when it was recorded, a stream that waits for an
// event knows that too. Two operations that touch the same bytes, one of them writing, must be in order by what the later one's stream
// knows; if they are not, it is a race, and found in every run and not only in unlucky ones.
//
// Streams keep time, too: only a timer's waits take any, and a stream that waits for an event goes on no earlier than that. So a device may
// be far behind the CPU that queues its work, in no time.
#pragma once

#include <map>
#include <mutex>

#include "../test.h"

namespace firkin::streams {

using StreamKey = int64_t;
using Clock = std::map<StreamKey, int64_t>;

// Of memory, by an operation.
struct Access {
  StreamKey stream = 0;
  std::string operation;
  uintptr_t first = 0, end = 0;
  int64_t time = 0;
  bool writes = false;
  bool overlaps(uintptr_t begin, uintptr_t behind) const { return first < behind && begin < end; }
};

class Clocks {
 public:
  // Of all tests of this process.
  static Clocks& all() {
    static auto* clocks = new Clocks;  // tensors may outlive what is static
    return *clocks;
  }

  // A new operation of the stream; touch() belongs to it until the next one of this thread.
  void begin(StreamKey stream, const std::string& operation) {
    const std::lock_guard lock(mutex_);
    ++clocks_[stream][stream];
    current_ = Access{.stream = stream, .operation = operation};
  }

  // lasts: the operation may go on when the CPU does; false: the CPU waits for its end.
  void touch(const void* first, int64_t bytes, bool writes, bool lasts = true) {
    if (bytes == 0) return;
    const std::lock_guard lock(mutex_);
    Access access = current_;
    access.first = reinterpret_cast<uintptr_t>(first);
    access.end = access.first + static_cast<uintptr_t>(bytes);
    access.time = clocks_[access.stream][access.stream];
    access.writes = writes;
    for (const Access& earlier : accesses_) {
      if (!access.overlaps(earlier.first, earlier.end) || (!writes && !earlier.writes) || is_before(earlier, access.stream)) continue;
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

  Clock now(StreamKey stream) {
    const std::lock_guard lock(mutex_);
    return clocks_[stream];
  }
  void learn(StreamKey stream, const Clock& clock) {
    const std::lock_guard lock(mutex_);
    for (const auto& [other, time] : clock) clocks_[stream][other] = std::max(clocks_[stream][other], time);
  }

  // When a stream has done what is queued on it, in nanoseconds of the host's clock: not before now.
  int64_t done_ns(StreamKey stream) {
    const int64_t now = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    const std::lock_guard lock(mutex_);
    return std::max(done_ns_[stream], now);
  }
  void not_done_before(StreamKey stream, int64_t ns) {
    const std::lock_guard lock(mutex_);
    done_ns_[stream] = std::max(done_ns_[stream], ns);
  }

  // The block goes back to the allocator, which may hand it out on `stream` at once, unless other streams' use was recorded.
  void freed(const void* first, int64_t bytes, StreamKey stream, bool was_recorded) {
    const std::lock_guard lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(first);
    std::erase_if(accesses_, [&](const Access& access) {
      if (!access.overlaps(begin, begin + static_cast<uintptr_t>(bytes))) return false;
      if (!was_recorded && !is_before(access, stream)) {
        races_.push_back(fmt::format("{} bytes of stream {:#x} are free while {} on stream {:#x} may be using them", bytes, stream,
                                     access.operation, access.stream));
      }
      return true;
    });
  }

  // The CPU waited for a device.
  void host_waits(const std::string& why) {
    const std::lock_guard lock(mutex_);
    host_waits_.push_back(why);
  }

  // What was found since the last call.
  std::vector<std::string> take_races() { return take(races_); }
  std::vector<std::string> take_host_waits() { return take(host_waits_); }

  // What is known of earlier tests.
  void forget() {
    take_races();
    take_host_waits();
    const std::lock_guard lock(mutex_);
    done_ns_.clear();
  }

 private:
  bool is_before(const Access& access, StreamKey stream) { return clocks_[stream][access.stream] >= access.time; }

  std::vector<std::string> take(std::vector<std::string>& found) {
    const std::lock_guard lock(mutex_);
    return std::exchange(found, {});
  }

  static inline thread_local Access current_;
  std::mutex mutex_;
  std::map<StreamKey, Clock> clocks_;
  std::map<StreamKey, int64_t> done_ns_;
  std::vector<Access> accesses_;
  std::vector<std::string> races_, host_waits_;
};

}  // namespace firkin::streams
